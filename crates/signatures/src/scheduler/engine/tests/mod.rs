mod ends;
mod lanes;
mod protocol;
mod rig;
mod work;
