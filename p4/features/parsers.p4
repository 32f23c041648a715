// Parsers: lookahead, advance, varbit, stacks with next, last and lastIndex, unions, loops, subparsers, verify, every error.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

error {
    TooManyLabels,
    BadMark
}

header choice_t {
    bit<8> path;
    bit<8> error_number;
    bit<8> count;
}

header options_t {
    bit<4> words;
    bit<4> mark;
    varbit<120> data;
}

header label_t {
    bit<20> label;
    bit<3> class;
    bit<1> bottom;
    bit<8> ttl;
}

header short_t {
    bit<8> tag;
    bit<8> value;
}

header long_t {
    bit<8> tag;
    bit<24> value;
}

header_union either_t {
    short_t short;
    long_t long;
}

header trailer_t {
    bit<16> value;
}

struct headers_t {
    frame_t frame;
    choice_t choice;
    options_t options;
    label_t[3] labels;
    label_t[3] labels_again;
    either_t[3] list;
    either_t one;
    trailer_t trailer;
}

struct metadata_t {
    bit<8> left;
    bit<20> last_label;
    bit<12> ahead;
    bit<32> index;
}

#include "include/plain.p4"

parser Labels(packet_in packet, inout headers_t hdr, inout metadata_t meta) {
    state start {
        packet.extract(hdr.labels.next);
        meta.last_label = hdr.labels.last.label;
        meta.index = hdr.labels.lastIndex;
        transition select(hdr.labels.last.bottom) {
            0: start;
            1: accept;
        }
    }
}

parser ParsersParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Labels() labels;

    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.choice);
        meta.left = hdr.choice.count;
        transition select(hdr.choice.path, standard.ingress_port) {
            (0, _): accept;
            (1, _): options;
            (2, _): labels_of_subparser;
            (3, _): list;
            (4, _): one;
            (5, _): skip;
            (6, _): verified;
            (7, 0 .. 3): trailer;
            (7, 4): options;
            (0x80 &&& 0xf0, _): ahead;
            (0x90, 1): by_hand;
        }
    }
    state options {
        packet.extract(hdr.options, (bit<32>)packet.lookahead<bit<4>>() * 8);
        transition trailer;
    }
    state labels_of_subparser {
        labels.apply(packet, hdr, meta);
        hdr.labels_again = hdr.labels;
        transition trailer;
    }
    // A loop that counts.
    state list {
        transition select(meta.left) {
            0: trailer;
            default: item;
        }
    }
    state item {
        meta.left = meta.left - 1;
        transition select(packet.lookahead<bit<8>>()) {
            0 .. 0x7f: short_item;
            default: long_item;
        }
    }
    state short_item {
        packet.extract(hdr.list.next.short);
        transition list;
    }
    state long_item {
        packet.extract(hdr.list.next.long);
        transition list;
    }
    state one {
        short_t seen = packet.lookahead<short_t>();
        transition select(seen.tag, seen.value) {
            (1, 0x10 .. 0x20): one_short;
            (1, _): one_long;
            (2, 0x80 &&& 0x80): one_long;
            default: reject;
        }
    }
    state one_short {
        packet.extract(hdr.one.short);
        transition trailer;
    }
    state one_long {
        packet.extract(hdr.one.long);
        transition trailer;
    }
    state skip {
        packet.advance((bit<32>)hdr.choice.count);
        transition trailer;
    }
    state verified {
        verify(hdr.choice.count != 0, error.TooManyLabels);
        verify(hdr.choice.count[0:0] == 0, error.BadMark);
        packet.extract(hdr.trailer);
        verify(hdr.trailer.value == 0x1234, error.ParserInvalidArgument);
        transition accept;
    }
    state ahead {
        meta.ahead = packet.lookahead<bit<12>>();
        transition select(packet.lookahead<bit<48>>()[19:4], meta.ahead) {
            (0x1111, _): trailer;
            (_, 0xabc): options;
            default: accept;
        }
    }
    state by_hand {
        packet.extract<trailer_t>(_);
        packet.extract(hdr.trailer);
        transition select(hdr.trailer.value[3:0] ++ hdr.trailer.value[15:12], hdr.trailer.value & 0xff) {
            (0x5a, 0x05): options;
            (0x00 &&& 0x0f, _): skip;
            default: accept;
        }
    }
    state trailer {
        packet.extract(hdr.trailer);
        transition accept;
    }
}

control ParsersIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (standard.parser_error == error.NoError) {
            hdr.choice.error_number = 0;
        } else if (standard.parser_error == error.PacketTooShort) {
            hdr.choice.error_number = 1;
        } else if (standard.parser_error == error.NoMatch) {
            hdr.choice.error_number = 2;
        } else if (standard.parser_error == error.StackOutOfBounds) {
            hdr.choice.error_number = 3;
        } else if (standard.parser_error == error.HeaderTooShort) {
            hdr.choice.error_number = 4;
        } else if (standard.parser_error == error.ParserTimeout) {
            hdr.choice.error_number = 5;
        } else if (standard.parser_error == error.ParserInvalidArgument) {
            hdr.choice.error_number = 6;
        } else if (standard.parser_error == error.TooManyLabels) {
            hdr.choice.error_number = 7;
        } else if (standard.parser_error == error.BadMark) {
            hdr.choice.error_number = 8;
        } else {
            hdr.choice.error_number = 0xff;
        }
        hdr.choice.count = (bit<8>)meta.index;
        if (hdr.labels[0].isValid()) {
            hdr.labels[0].label = meta.last_label;
        }
        if (hdr.list[1].short.isValid()) {
            hdr.list[1].short.value = 0xee;
        }
        if (hdr.one.isValid() && hdr.one.long.isValid()) {
            hdr.one.long.value = hdr.one.long.value + 1;
        }
        if (hdr.options.isValid()) {
            hdr.options.mark = hdr.options.mark ^ 0xf;
        }
        if (hdr.trailer.isValid()) {
            hdr.trailer.value = hdr.trailer.value ^ (bit<16>)meta.ahead;
        }
    }
}

V1Switch(ParsersParser(), PlainVerify(), ParsersIngress(), PlainEgress(), PlainCompute(), PlainDeparser()) main;
