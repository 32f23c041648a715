//! Hash algorithms and checksums of v1model, bit for bit as BMv2 computes them.
