//! The node: one data plane, fed from the registry, kept fresh, its events turned into refills.
