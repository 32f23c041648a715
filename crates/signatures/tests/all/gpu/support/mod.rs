//! Tests that run on a device, or on kernels compiled for this CPU: the same inputs, the same expectations.

pub mod arithmetic;
pub mod batches;
pub mod keys;
pub mod numbers;
pub mod p256;
pub mod points;
pub mod ra;
pub mod rsa;

use linewarden_signatures::gpu::Gpu;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

/// Runs a test of one device with random numbers; prints the seed, which `LINEWARDEN_SEED` sets.
pub fn run(gpu: &mut Gpu, default_seed: u64, test: fn(&mut Gpu, &mut ChaCha20Rng)) {
    let seed = std::env::var("LINEWARDEN_SEED").map_or(default_seed, |seed| seed.parse().unwrap());
    println!("LINEWARDEN_SEED={seed} reproduces this run");
    test(gpu, &mut ChaCha20Rng::seed_from_u64(seed));
}

/// Makes a test of each case; `$with` calls a function with a device, or skips the test.
macro_rules! all_cases {
    ($with:path) => {
        $crate::gpu::support::all_cases! { $with:
            multipliers = arithmetic::multipliers, 1;
            field_of_p256 = arithmetic::p256_field, 2;
            full_domain_hashes = rsa::full_domain_hashes, 3;
            pss_signatures_of_one_signer_and_another = rsa::pss_valid, 4;
            invalid_pss_signatures = rsa::pss_invalid, 5;
            private_operations = rsa::private_operations, 6;
            inconsistent_secret_keys_release_no_signature = rsa::inconsistent_secrets, 7;
            ra_signatures = ra::signatures, 8;
            invalid_ra_signatures = ra::refused, 9;
            masks_are_taken_once = ra::masks, 10;
            p256_signatures_of_another_signer = p256::signatures, 11;
            p256_points_that_meet = p256::meeting_points, 12;
            p256_x_above_the_order = p256::x_above_the_order, 13;
            p256_keys_and_numbers_out_of_range = p256::out_of_range, 14;
            batches_of_all_lengths = batches::lengths, 15;
            malformed_batches_are_refused = batches::malformed, 16;
            p256_batches_of_all_lengths = batches::p256_lengths, 17;
        }
    };
    ($with:path: $($name:ident = $module:ident::$function:ident, $seed:literal;)*) => {
        $(
            #[test]
            fn $name() {
                $with(|gpu| $crate::gpu::support::run(gpu, $seed, $crate::gpu::support::$module::$function));
            }
        )*
    };
}
pub(crate) use all_cases;
