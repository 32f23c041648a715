//! How many connections there are from each address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bits of an IPv6 address that say whose it is: everybody has all the addresses below them.
const PREFIX_BITS: u32 = 64;

type Counts = HashMap<IpAddr, usize>;

/// Counts them; cheap to clone.
#[derive(Clone)]
pub(super) struct Shares {
    counts: Arc<Mutex<Counts>>,
    most: usize,
}

/// A place, until it is dropped.
pub(super) struct Share {
    of: Shares,
    address: IpAddr,
}

impl Shares {
    /// At most so many of each address.
    pub(super) fn new(most: usize) -> Self {
        Self {
            counts: Arc::default(),
            most,
        }
    }

    /// A place for one more connection, if there is one for that address.
    pub(super) fn take(&self, address: IpAddr) -> Option<Share> {
        let address = owner(address);
        let mut counts = self.counts();
        let count = counts.entry(address).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Share {
            of: self.clone(),
            address,
        })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Whole at every moment, whoever panicked.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut counts = self.of.counts();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

fn owner(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let mask = u128::MAX << (u128::BITS - PREFIX_BITS);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_has_its_share_and_gets_it_back() {
        let shares = Shares::new(2);
        let at = |text: &str| shares.take(text.parse().unwrap());
        let first = at("2001:db8::1");
        assert!(first.is_some());
        let second = at("2001:db8::2");
        assert!(second.is_some());
        assert!(at("2001:db8::ffff:3").is_none(), "of the same owner");
        assert!(at("2001:db8:0:1::1").is_some());
        assert!(at("192.0.2.1").is_some());
        drop(second);
        assert!(at("2001:db8::3").is_some());
        drop(first);
        assert!(shares.counts().is_empty(), "nobody is remembered");
        let mapped = [at("192.0.2.1"), at("::ffff:192.0.2.1")];
        assert!(mapped.iter().all(Option::is_some));
        assert!(at("192.0.2.1").is_none());
    }
}
