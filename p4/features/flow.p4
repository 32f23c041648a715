// Control flow: exit, return, switch, short-circuit conditions, functions; dropping a packet and revoking the drop;
// assertions; priorities.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header order_t {
    bit<8> op;
    bit<8> n;
    bit<32> trace;
}

struct headers_t {
    frame_t frame;
    order_t order;
}

struct metadata_t {
    bit<8> calls;
}

#include "include/plain.p4"

parser FlowParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.order);
        transition accept;
    }
}

// Appends a number to the trace.
#define TRACE(number) hdr.order.trace = hdr.order.trace << 4 | number;

bool called(inout bit<8> calls, in bool answer) {
    calls = calls + 1;
    return answer;
}

bit<8> early(in bit<8> n) {
    if (n > 100) {
        return 100;
    }
    if (n == 7) {
        return 0;
    }
    return n;
}

control Inner(inout headers_t hdr) {
    apply {
        TRACE(1)
        if (hdr.order.n == 1) {
            return;
        }
        TRACE(2)
        if (hdr.order.n == 2) {
            exit;
        }
        TRACE(3)
    }
}

control FlowIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Inner() inner;

    action leave() {
        TRACE(4)
        exit;
    }
    action go_on() {
        TRACE(5)
    }
    action go_back(bit<8> by) {
        if (by == 3) {
            return;
        }
        TRACE(6)
    }
    // This target allows a table to be applied in one place only.
    #define WAYS { \
        key = { \
            hdr.order.n: exact; \
        } \
        actions = { \
            leave; \
            go_on; \
            go_back; \
        } \
        default_action = go_on(); \
        const entries = { \
            4: leave(); \
            5: go_on(); \
            6: go_back(2); \
            7: go_back(3); \
        } \
    }
    table ways WAYS
    table ways_of_switch WAYS

    apply {
        standard.egress_spec = 1;
        switch (hdr.order.op) {
            0: {
                inner.apply(hdr);
                TRACE(7)
            }
            1: {
                ways.apply();
                TRACE(7)
            }
            2: {
                switch (ways_of_switch.apply().action_run) {
                    go_on: {
                        TRACE(8)
                        if (hdr.order.n == 5) {
                            exit;
                        }
                    }
                    go_back: {
                        TRACE(9)
                        return;
                    }
                }
                TRACE(7)
            }
            3: {
                if (called(meta.calls, hdr.order.n[0:0] == 1) && called(meta.calls, hdr.order.n[1:1] == 1)) {
                    TRACE(1)
                }
                if (called(meta.calls, hdr.order.n[2:2] == 1) || called(meta.calls, hdr.order.n[3:3] == 1)) {
                    TRACE(2)
                }
                hdr.order.n = meta.calls;
            }
            4: {
                hdr.order.n = early(hdr.order.n);
            }
            5: {
                // Only a new port revokes the drop.
                mark_to_drop(standard);
                if (hdr.order.n == 1) {
                    standard.egress_spec = 2;
                }
                if (hdr.order.n == 2) {
                    mark_to_drop(standard);
                    exit;
                }
                if (hdr.order.n == 3) {
                    standard.mcast_grp = 0;
                    standard.egress_spec = 3;
                    exit;
                }
            }
            6: {
                // Egress drops the packet or sets a port; the packet can only leave through the port that ingress set.
                standard.egress_spec = 1;
            }
            7: {
                assert(hdr.order.n != 1);
                assume(hdr.order.n < 10);
                TRACE(7)
            }
            8: {
                standard.priority = 0;
                log_msg("packet of port {}, {}", { standard.ingress_port, hdr.order.n });
                standard.egress_spec = (bit<9>)hdr.order.n;
            }
            9: {
                // Port 0 is the default without an assignment.
                standard.egress_spec = 0;
            }
            10: {
                // There is one queue unless the switch is started with more.
                standard.priority = (bit<3>)hdr.order.n;
            }
            0x10 :
            0x11: {
                TRACE(0xa)
            }
            default: {
                TRACE(0xb)
                return;
            }
        }
        TRACE(0xf)
    }
}

control FlowEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        // exit and return in ingress end only ingress: egress runs.
        TRACE(0xe)
        if (hdr.order.op == 6) {
            if (hdr.order.n == 1) {
                mark_to_drop(standard);
            } else if (hdr.order.n == 2) {
                standard.egress_spec = 5;
            } else if (hdr.order.n == 3) {
                standard.egress_spec = 511;
            } else if (hdr.order.n == 4) {
                mark_to_drop(standard);
                standard.egress_spec = 4;
            } else if (hdr.order.n == 5) {
                TRACE(1)
                exit;
            }
        }
        TRACE(0xd)
    }
}

V1Switch(FlowParser(), PlainVerify(), FlowIngress(), FlowEgress(), PlainCompute(), PlainDeparser()) main;
