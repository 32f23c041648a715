// What every program of features/ begins a packet with: the 14 bytes that a veth interface wants. Nobody reads them.
header frame_t {
    bit<112> bytes;
}
