// Tables: exact, LPM, ternary, range and optional keys, wide and narrow, masked and of expressions; constant entries and defaults;
// hits and misses. The packet selects the table and receives the number of the matching entry.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header order_t {
    bit<8> table_number;
    bit<16> found;
    bit<8> hit;
}

header keys_t {
    bit<32> a;
    bit<16> b;
    bit<8> c;
    bit<4> d;
    bit<12> e;
    bit<128> f;
}

struct headers_t {
    frame_t frame;
    order_t order;
    keys_t keys;
}

struct metadata_t {
}

#include "include/plain.p4"

parser TablesParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.order);
        transition select(hdr.order.table_number[7:7]) {
            0: keys;
            1: accept;
        }
    }
    state keys {
        packet.extract(hdr.keys);
        transition accept;
    }
}

control TablesIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action found(bit<16> number) {
        hdr.order.found = number;
    }
    action found_two(bit<4> high, bit<12> low) {
        hdr.order.found = high ++ low;
    }
    action missed() {
        hdr.order.found = 0xffff;
    }

    table exact_keys {
        key = {
            hdr.keys.a: exact;
            hdr.keys.e: exact;
        }
        actions = {
            found;
            found_two;
            @defaultonly missed;
        }
        default_action = missed;
    }
    table which {
        key = {
            hdr.keys.e: exact;
        }
        actions = {
            found;
            found_two;
            missed;
        }
        default_action = missed;
    }
    table exact_wide {
        key = {
            hdr.keys.f: exact;
            hdr.keys.isValid(): exact;
        }
        actions = {
            found;
            missed;
        }
        const default_action = missed;
    }
    table longest {
        key = {
            hdr.keys.a: lpm;
        }
        actions = {
            found;
            missed;
        }
        default_action = missed;
    }
    table longest_of_one {
        key = {
            hdr.keys.c: exact;
            hdr.keys.f: lpm;
        }
        actions = {
            found;
            missed;
        }
        default_action = found(0xfffe);
    }
    table some_masks {
        key = {
            hdr.keys.a: ternary;
            hdr.keys.d: ternary;
            hdr.keys.isValid(): ternary;
        }
        actions = {
            found;
            missed;
        }
        default_action = missed;
    }
    table wide_masks {
        key = {
            hdr.keys.f: ternary;
            hdr.keys.b: exact;
        }
        actions = {
            found;
        }
        size = 4;
    }
    table some_ranges {
        key = {
            hdr.keys.b: range;
            hdr.keys.e: range;
            hdr.keys.c: exact;
        }
        actions = {
            found;
            missed;
        }
        default_action = missed;
    }
    table optionals {
        key = {
            hdr.keys.b: optional;
            hdr.keys.d: optional;
        }
        actions = {
            found;
            missed;
        }
        default_action = missed;
    }
    // Computed keys, a static mask, a slice.
    table computed {
        key = {
            hdr.keys.a & 0x00ff00f0: exact @name("masked");
            hdr.keys.b + (bit<16>)hdr.keys.c: exact @name("sum");
            hdr.keys.f[70:61]: ternary @name("slice");
        }
        actions = {
            found;
            missed;
        }
        default_action = missed;
    }
    table constant_exact {
        key = {
            hdr.keys.c: exact;
        }
        actions = {
            found;
            missed;
        }
        const default_action = missed;
        const entries = {
            1: found(1);
            2: found(2);
            0xff: missed();
        }
    }
    table constant_mixed {
        key = {
            hdr.keys.b: ternary;
            hdr.keys.c: range;
            hdr.keys.d: exact;
        }
        actions = {
            found;
            missed;
        }
        const default_action = missed;
        const entries = {
            (0x1200 &&& 0xff00, 1 .. 5, 0): found(1);
            (0x1234, _, 0): found(2);
            (_, 0x80 .. 0xff, 1): found(3);
            (_, _, 1): found(4);
        }
    }
    table first_priorities {
        key = {
            hdr.keys.b: ternary;
        }
        actions = {
            found;
            missed;
        }
        const default_action = missed;
        entries = {
            priority = 30: 0x1200 &&& 0xff00: found(30);
            priority = 20: 0x0034 &&& 0x00ff: found(20);
            priority = 10: 0x1000 &&& 0xf000: found(10);
        }
    }
    table constant_prefixes {
        key = {
            hdr.keys.a: lpm;
        }
        actions = {
            found;
            missed;
        }
        const default_action = missed;
        const entries = {
            0x0a000000 &&& 0xff000000: found(8);
            0x0a010000 &&& 0xffff0000: found(16);
            0x0a010203: found(32);
            _: found(0);
        }
    }
    table without_key {
        actions = {
            found;
            missed;
        }
        default_action = found(0x5555);
    }
    table without_default {
        key = {
            hdr.keys.c: exact;
        }
        actions = {
            found;
            NoAction;
        }
    }

    apply {
        standard.egress_spec = 1;
        bool hit = false;
        switch (hdr.order.table_number & 0x7f) {
            0: {
                hit = exact_keys.apply().hit;
            }
            1: {
                hit = exact_wide.apply().hit;
            }
            2: {
                hit = longest.apply().hit;
            }
            3: {
                hit = !longest_of_one.apply().miss;
            }
            4: {
                hit = some_masks.apply().hit;
            }
            5: {
                hit = wide_masks.apply().hit;
            }
            6: {
                hit = some_ranges.apply().hit;
            }
            7: {
                hit = optionals.apply().hit;
            }
            8: {
                hit = computed.apply().hit;
            }
            9: {
                hit = constant_exact.apply().hit;
            }
            10: {
                hit = constant_mixed.apply().hit;
            }
            11: {
                hit = first_priorities.apply().hit;
            }
            12: {
                hit = constant_prefixes.apply().hit;
            }
            13: {
                hit = without_key.apply().hit;
            }
            14: {
                hit = without_default.apply().hit;
            }
            15: {
                switch (which.apply().action_run) {
                    found: {
                        hdr.order.found = hdr.order.found + 1;
                    }
                    found_two:
                    missed: {
                        hdr.order.found = hdr.order.found - 1;
                    }
                }
            }
        }
        hdr.order.hit = hit ? 8w1 : 0;
    }
}

V1Switch(TablesParser(), PlainVerify(), TablesIngress(), PlainEgress(), PlainCompute(), PlainDeparser()) main;
