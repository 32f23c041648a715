// First header of all programs in features/: the 14 bytes that a veth interface requires. The programs do not read them.
header frame_t {
    bit<112> bytes;
}
