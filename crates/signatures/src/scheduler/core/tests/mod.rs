mod admission;
mod lanes;
mod random;
mod rig;
mod work;
