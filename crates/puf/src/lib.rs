//! PUF models with noise, readout import, error correction, residual entropy and quality metrics.
