//! The skeletons of the eBPF programs, as the build script generates them.

macro_rules! skeleton {
    ($name:ident, $file:literal) => {
        #[allow(
            clippy::all,
            clippy::indexing_slicing,
            clippy::unwrap_used,
            clippy::expect_used,
            clippy::panic,
            clippy::undocumented_unsafe_blocks,
            missing_docs,
            unused,
            reason = "generated"
        )]
        pub(crate) mod $name {
            include!(concat!(env!("OUT_DIR"), $file));
        }
    };
}

skeleton!(burst, "/burst.skel.rs");
skeleton!(loadgen, "/loadgen.skel.rs");
skeleton!(pace, "/pace.skel.rs");
skeleton!(pass, "/pass.skel.rs");
