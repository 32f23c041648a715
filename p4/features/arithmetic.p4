// Arithmetic: unsigned, signed and saturating, of 1 to 200 bits; shifts, division, slices, casts, comparisons. One action per
// operation; the packet selects the table and the operands.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header operands_t {
    bit<8> op;
    bit<200> a;
    bit<200> b;
    bit<200> result;
}

struct headers_t {
    frame_t frame;
    operands_t in_;
}

struct metadata_t {
}

#include "include/plain.p4"

parser ArithmeticParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.in_);
        transition accept;
    }
}

#define A(type) ((type)hdr.in_.a)
#define B(type) ((type)hdr.in_.b)
#define RESULT hdr.in_.result
// The operands as signed numbers of the width, the result without a sign.
#define SIGNED_A(width) ((int<width>)(bit<width>)hdr.in_.a)
#define SIGNED_B(width) ((int<width>)(bit<width>)hdr.in_.b)
#define FROM_SIGNED(width, value) ((bit<200>)(bit<width>)(value))

// Sum, difference, product, negation, each with its own width, in one result.
#define RING(width) { \
    bit<width> sum = A(bit<width>) + B(bit<width>); \
    bit<width> difference = A(bit<width>) - B(bit<width>); \
    bit<width> product = A(bit<width>) * B(bit<width>); \
    RESULT = (bit<200>)(sum ^ ~(difference + product) ^ product ^ -A(bit<width>)); }
#define SIGNED_RING(width) { \
    int<width> sum = SIGNED_A(width) + SIGNED_B(width); \
    int<width> difference = SIGNED_A(width) - SIGNED_B(width); \
    int<width> product = SIGNED_A(width) * SIGNED_B(width); \
    RESULT = FROM_SIGNED(width, sum ^ ~(difference + product) ^ product ^ -SIGNED_A(width)); }
#define SATURATING(width) \
    RESULT = (bit<200>)(A(bit<width>) |+| B(bit<width>)) << 100 | (bit<200>)(A(bit<width>) |-| B(bit<width>));
#define SIGNED_SATURATING(width) \
    RESULT = FROM_SIGNED(width, SIGNED_A(width) |+| SIGNED_B(width)) << 100 | \
        FROM_SIGNED(width, SIGNED_A(width) |-| SIGNED_B(width));
#define SHIFTS(width) \
    RESULT = (bit<200>)(A(bit<width>) << B(bit<8>)) ^ (bit<200>)(A(bit<width>) >> B(bit<8>)) ^ \
        FROM_SIGNED(width, SIGNED_A(width) >> B(bit<8>));
bit<48> min_of(in bit<48> a, in bit<48> b) {
    return a < b ? a : b;
}

// One bit per comparison.
#define COMPARISONS(width) { \
    bit<12> found = 0; \
    if (A(bit<width>) < B(bit<width>)) { found[0:0] = 1; } \
    if (A(bit<width>) <= B(bit<width>)) { found[1:1] = 1; } \
    if (A(bit<width>) > B(bit<width>)) { found[2:2] = 1; } \
    if (A(bit<width>) >= B(bit<width>)) { found[3:3] = 1; } \
    if (A(bit<width>) == B(bit<width>)) { found[4:4] = 1; } \
    if (A(bit<width>) != B(bit<width>)) { found[5:5] = 1; } \
    if (SIGNED_A(width) < SIGNED_B(width)) { found[6:6] = 1; } \
    if (SIGNED_A(width) >= SIGNED_B(width)) { found[7:7] = 1; } \
    if (SIGNED_A(width) > -1) { found[8:8] = 1; } \
    if (A(bit<width>) == 0 || !(B(bit<width>) == 1 && A(bit<width>) > 3)) { found[9:9] = 1; } \
    RESULT = (bit<200>)found; }

control ArithmeticIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        switch (hdr.in_.op) {
            0: {
                RING(1)
            }
            1: {
                RING(7)
            }
            2: {
                RING(32)
            }
            3: {
                RING(33)
            }
            4: {
                RING(64)
            }
            5: {
                RING(65)
            }
            6: {
                RING(128)
            }
            7: {
                RING(200)
            }
            8: {
                SIGNED_RING(8)
            }
            9: {
                SIGNED_RING(31)
            }
            10: {
                SIGNED_RING(64)
            }
            11: {
                SIGNED_RING(128)
            }
            12: {
                SIGNED_RING(199)
            }
            13: {
                SATURATING(8)
            }
            14: {
                SATURATING(33)
            }
            15: {
                SATURATING(64)
            }
            16: {
                SATURATING(100)
            }
            17: {
                SIGNED_SATURATING(8)
            }
            18: {
                SIGNED_SATURATING(64)
            }
            19: {
                SIGNED_SATURATING(100)
            }
            20: {
                SHIFTS(8)
            }
            21: {
                SHIFTS(64)
            }
            22: {
                SHIFTS(100)
            }
            23: {
                SHIFTS(200)
            }
            24: {
                COMPARISONS(2)
            }
            25: {
                COMPARISONS(32)
            }
            26: {
                COMPARISONS(64)
            }
            27: {
                COMPARISONS(130)
            }
            28: {
                // By powers of two: the compiler supports no other divisors and generates shifts.
                RESULT = (bit<200>)(A(bit<32>) / 8) << 100 | (bit<200>)(A(bit<32>) % 8);
            }
            29: {
                RESULT = (A(bit<200>) / 65536) ^ (B(bit<200>) % 1024);
            }
            30: {
                // Slices: read, written, of the whole and of one bit.
                RESULT = (bit<200>)(hdr.in_.a[199:130] ++ hdr.in_.b[64:0]);
                RESULT[199:190] = hdr.in_.b[19:10];
                RESULT[0:0] = hdr.in_.a[77:77];
                RESULT[150:140] = 0x2aa;
            }
            31: {
                RESULT = hdr.in_.a[99:0] ++ hdr.in_.b[199:100];
            }
            32: {
                // Casts: wider with and without a sign, narrower, to and from one bit.
                int<128> wider = (int<128>)SIGNED_A(8);
                int<5> narrower = (int<5>)SIGNED_B(20);
                bool odd = (bool)hdr.in_.a[0:0];
                RESULT = FROM_SIGNED(128, wider) << 40 | FROM_SIGNED(5, narrower) << 8 | (bit<200>)(bit<1>)odd;
            }
            33: {
                RESULT = (A(bit<200>) & B(bit<200>)) ^ (A(bit<200>) | 0xff00ff00ff) ^ ~B(bit<200>);
            }
            34: {
                // Intermediate results that are wider than the field are truncated at each step.
                bit<8> step = (A(bit<8>) + B(bit<8>)) >> 1;
                bit<16> sum = ((bit<16>)A(bit<8>) + (bit<16>)B(bit<8>)) >> 1;
                RESULT = (bit<200>)(step ++ sum);
            }
            35: {
                RESULT = A(bit<64>) > B(bit<64>) ? A(bit<200>) - B(bit<200>) : B(bit<200>) + 1;
            }
            36: {
                bit<64> shifted = A(bit<64>) << 63;
                RESULT = (bit<200>)(shifted | (B(bit<64>) >> 63)) | (A(bit<200>) << 199);
            }
            37: {
                RESULT = (bit<200>)min_of(A(bit<48>), B(bit<48>));
            }
            38: {
                // -128 / its own negation, the smallest number.
                RESULT = FROM_SIGNED(8, -SIGNED_A(8)) << 8 | FROM_SIGNED(8, 8s0 |-| SIGNED_A(8));
            }
            39: {
                random(hdr.in_.result, (bit<200>)77, (bit<200>)77);
            }
        }
    }
}

V1Switch(ArithmeticParser(), PlainVerify(), ArithmeticIngress(), PlainEgress(), PlainCompute(), PlainDeparser()) main;
