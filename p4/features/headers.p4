// Headers in controls: push and pop of stacks, unions, copies, comparisons, validity, reads of invalid headers.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header order_t {
    bit<8> op;
    bit<8> shape;
    bit<8> told;
}

header item_t {
    bit<8> a;
    bit<4> b;
    bit<12> c;
}

header pair_t {
    bit<16> x;
    bit<16> y;
}

header text_t {
    bit<8> length;
    varbit<64> text;
}

header_union either_t {
    item_t item;
    pair_t pair;
}

struct headers_t {
    frame_t frame;
    order_t order;
    item_t one;
    item_t two;
    item_t[4] items;
    either_t first;
    either_t second;
    text_t text;
    text_t copy;
}

struct inner_t {
    bit<16> n;
    bool flag;
}

struct metadata_t {
    bit<8> left;
    inner_t inner;
    inner_t other;
}

#include "include/plain.p4"

parser HeadersParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.order);
        meta.left = (bit<8>)hdr.order.shape[1:0];
        transition select(hdr.order.shape[7:7]) {
            1: one;
            0: two_or_not;
        }
    }
    state one {
        packet.extract(hdr.one);
        transition two_or_not;
    }
    state two_or_not {
        transition select(hdr.order.shape[6:6]) {
            1: two;
            0: items;
        }
    }
    state two {
        packet.extract(hdr.two);
        transition items;
    }
    state items {
        transition select(meta.left) {
            0: unions;
            default: item;
        }
    }
    state item {
        packet.extract(hdr.items.next);
        meta.left = meta.left - 1;
        transition items;
    }
    state unions {
        transition select(hdr.order.shape[5:4]) {
            1: union_item;
            2: union_pair;
            default: text_or_not;
        }
    }
    state union_item {
        packet.extract(hdr.first.item);
        transition text_or_not;
    }
    state union_pair {
        packet.extract(hdr.first.pair);
        transition text_or_not;
    }
    state text_or_not {
        transition select(hdr.order.shape[3:3]) {
            1: text;
            0: accept;
        }
    }
    state text {
        packet.extract(hdr.text, (bit<32>)(packet.lookahead<bit<8>>() & 7) << 3);
        transition accept;
    }
}

control HeadersIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        switch (hdr.order.op) {
            0: {
                hdr.items.push_front(1);
                hdr.items[0].setValid();
                hdr.items[0].a = 0xee;
            }
            1: {
                hdr.items.push_front(3);
            }
            2: {
                hdr.items.pop_front(1);
            }
            3: {
                hdr.items.pop_front(2);
                hdr.items.push_front(1);
                hdr.items[0] = hdr.one;
            }
            4: {
                hdr.items[1].setInvalid();
            }
            5: {
                // A run-time index, in or out of range.
                bit<8> at = hdr.order.shape & 3;
                hdr.items[at].a = 0x77;
                hdr.order.told = hdr.items[at].a;
            }
            6: {
                hdr.one = hdr.two;
            }
            7: {
                hdr.two.setInvalid();
                hdr.one.setValid();
                hdr.one.a = 1;
            }
            8: {
                hdr.order.told = hdr.one == hdr.two ? 8w1 : 2;
            }
            9: {
                hdr.order.told = (bit<8>)hdr.items[0].c;
            }
            10: {
                hdr.second = hdr.first;
            }
            11: {
                // The other member becomes invalid.
                hdr.first.pair.setValid();
                hdr.first.pair.x = 0x1122;
                hdr.first.pair.y = 0x3344;
            }
            12: {
                hdr.first.item.setInvalid();
                hdr.order.told = hdr.first.isValid() ? 8w1 : 2;
            }
            13: {
                hdr.order.told = hdr.first == hdr.second ? 8w1 : 2;
            }
            14: {
                hdr.first.item = { 1, 2, 3 };
                hdr.second.pair = { 4, 5 };
            }
            15: {
                hdr.copy = hdr.text;
                hdr.copy.length = hdr.copy.length | 0x80;
            }
            16: {
                hdr.copy = hdr.text;
                hdr.order.told = hdr.copy == hdr.text ? 8w1 : 2;
            }
            17: {
                meta.inner = { 0x1234, true };
                meta.other = meta.inner;
                meta.other.n = meta.other.n + (bit<16>)hdr.order.shape;
                hdr.order.told = meta.inner == meta.other ? 8w1 : 2;
            }
            18: {
                item_t[4] copied = hdr.items;
                copied.pop_front(1);
                hdr.order.told = copied == hdr.items ? 8w1 : 2;
                hdr.items = copied;
            }
            19: {
                item_t swapped = hdr.one;
                hdr.one = hdr.two;
                hdr.two = swapped;
            }
            20: {
                hdr.one = (item_t) { a = 0xff, c = 0xabc, b = 5 };
                hdr.text.setInvalid();
                hdr.frame.setInvalid();
            }
            21: {
                hdr.copy.setValid();
                hdr.copy.length = 0xcc;
                hdr.copy.text = hdr.text.text;
            }
        }
    }
}

// Emits the headers in a different order, one header twice, and omits one header.
control HeadersDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.frame);
        packet.emit(hdr.order);
        packet.emit(hdr.items);
        packet.emit(hdr.two);
        packet.emit(hdr.one);
        packet.emit(hdr.second);
        packet.emit(hdr.first);
        packet.emit(hdr.copy);
        packet.emit(hdr.text);
        packet.emit(hdr.two);
    }
}

V1Switch(HeadersParser(), PlainVerify(), HeadersIngress(), PlainEgress(), PlainCompute(), HeadersDeparser()) main;
