// Registers and counters: cells from 1 to 200 bits, indices out of range, packets and bytes, per cell and per entry.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header order_t {
    bit<8> op;
    bit<32> cell;
    bit<200> value;
    bit<200> old;
}

struct headers_t {
    frame_t frame;
    order_t order;
}

struct metadata_t {
}

#include "include/plain.p4"

parser RegistersParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.order);
        transition accept;
    }
}

// Writes the value of the packet to the cell, and the old value of the cell to the packet.
#define EXCHANGE(array, type) { type held = (type)hdr.order.old; \
    array.read(held, hdr.order.cell); \
    hdr.order.old = (bit<200>)held; \
    array.write(hdr.order.cell, (type)hdr.order.value); }

control RegistersIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<1>>(4) bits;
    register<bit<8>>(4) bytes;
    register<bit<33>>(4) odd;
    register<bit<64>>(4) longs;
    register<bit<100>>(4) wide;
    register<bit<128>>(4) wider;
    register<bit<200>>(4) widest;
    register<int<16>>(4) signed;
    counter(4, CounterType.packets) packets;
    counter(4, CounterType.bytes) octets;
    counter(4, CounterType.packets_and_bytes) both;
    direct_counter(CounterType.packets_and_bytes) by_entry;

    action add_up() {
        by_entry.count();
        bit<64> sum;
        longs.read(sum, 3);
        sum = sum + (bit<64>)hdr.order.value;
        longs.write(3, sum);
    }
    action nothing() {
    }
    table entries {
        key = {
            hdr.order.op: ternary;
        }
        actions = {
            add_up;
            nothing;
        }
        default_action = nothing;
        counters = by_entry;
    }

    apply {
        standard.egress_spec = 1;
        entries.apply();
        packets.count(hdr.order.cell);
        octets.count(hdr.order.cell);
        both.count(hdr.order.cell);
        switch (hdr.order.op) {
            0: {
                EXCHANGE(bits, bit<1>)
            }
            1: {
                EXCHANGE(bytes, bit<8>)
            }
            2: {
                EXCHANGE(odd, bit<33>)
            }
            3: {
                EXCHANGE(longs, bit<64>)
            }
            4: {
                EXCHANGE(wide, bit<100>)
            }
            5: {
                EXCHANGE(wider, bit<128>)
            }
            6: {
                EXCHANGE(widest, bit<200>)
            }
            7: {
                int<16> held;
                signed.read(held, hdr.order.cell);
                hdr.order.old = (bit<200>)(bit<16>)(held >> 2);
                signed.write(hdr.order.cell, (int<16>)(bit<16>)hdr.order.value);
            }
        }
    }
}

V1Switch(RegistersParser(), PlainVerify(), RegistersIngress(), PlainEgress(), PlainCompute(), PlainDeparser()) main;
