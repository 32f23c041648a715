//! The DataPlane trait, the shared line store, and its backends host (UDP) and xdp (eBPF).
