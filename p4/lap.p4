// LAP/1 gateway in the switch (docs/protocols.md 1): suite 1, pool and key mode, sessions, leases, the gate, PROOFs.
//
// Ownership of state. Only the pipeline writes `next_idx` and the state of sessions. Each decision and its write are one action:
// simple_switch locks all registers of an action while the action runs. The control plane
//   sets `gateway` (without this entry the gateway sends no replies and forwards nothing) and fills `ports`, `local`, `bridge`, `devices`;
//   adds to `bridge` the hosts that have the gateway's addresses: MAC addresses on service ports count as the gateway's;
//   fills `device_sources`, without which no REQUEST and no RESPONSE is accepted, `device_end_prefixes` and `end_prefixes`;
//   fills `control_protocols` (protocols that pass the gate, and protocols forbidden to devices), `dhcp_servers` and `gate_types`;
//   fills `enrolled` (devices whose messages go to CPU_PORT while they have no line), and their `expected` RESPONSEs with `armed`;
//   adds rows with their idx to `rows`, and keys of key mode to `keys`; removes spent rows and keys;
//   creates multicast group FLOOD with all ports, and may change the default action of `bridge`;
//   writes the initial `next_idx` of a device, `marks` (rows below the mark may be spent) and `revoked`;
//   writes `fresh` (0 current, 1 previous; previous first) and `fresh_until_us`: the time after which the pipeline replies
//   to no REQUEST and no RESPONSE, by its own clock, which each frame from CPU_PORT to a port writes to `clock_us`;
//   closes a session by writing 0 to `session_ids`, stops with `stopping`, receives digests, drops unknown devices with `filtering`;
//   sets the rates of all meters, which are green by default;
//   writes random `bucket_keys` before the first session; otherwise all owners share one bucket;
//   fills `provers` and `proof_keys`, starts a round by writing the registers of its lane (lowest bit of the number), the number
//   last, reads `proved` (two words per prover), sends ATTEST_REQUESTs from the addresses in `gateway_macs`, `gateway_addresses`.
//
// Not supported, in addition to the general list in docs/protocols.md:
//   classic profiles (classic_puf.p4, p4dra.p4);
//   sealed payloads longer than PAYLOAD_BYTES (drop_too_big, both directions), and downstream to the LAP port (drop_unsealed);
//   traffic between devices with a sealed gate (drop_unsealed): the pipeline would have to open and seal a packet in one pass;
//   ATTEST_REQUESTs with a sealed gate, unless they come through CPU_PORT;
//   router advertisements through a sealed gate with more than PAYLOAD_BYTES of options (drop_unsealed);
//   separate counters for Ethernet types that are not in `gate_types`: one counter for all;
//   more than four slots for the owner of an address (selected by hash): drop_table_full if other owners use all four slots;
//   sessions that end at whole seconds (they end to the microsecond); per-CPU limits (meters limit NAKs, events and the slow path globally).
#include <core.p4>
#include <v1model.p4>
#include "include/lap_frame.p4"
#include "include/lap_order.p4"
#include "include/reply.p4"

// Computes the whole block of a PROOF in one pass.
#define PASS_ALL
#define WORK meta.work
#define TRY_KEY begin(); FOURTEEN_ROUNDS feed_forward(); compare();

control LapVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {
    }
}

control LapIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
#include "include/lap_state.p4"
#include "include/proof_state.p4"
#include "include/proof_keys.p4"
#include "include/lap_gate.p4"

    Classify() classify;
    LapOrder() lap_order;
    TurnRound() turn_round;

    apply {
        meta.verdict = UNDECIDED;
        meta.ingress = standard.ingress_port;
        bit<32> frame_bytes = standard.packet_length;
        if (hdr.packet_out.isValid() && hdr.packet_out.port == REPLAY) {
            meta.ingress = hdr.packet_out.ingress[8:0];
            frame_bytes = frame_bytes - PACKET_OUT_BYTES;
            hdr.packet_out.setInvalid();
        } else if (hdr.packet_out.isValid()) {
            clock_us.write(0, standard.ingress_global_timestamp);
            standard.egress_spec = hdr.packet_out.port[8:0];
            hdr.packet_out.setInvalid();
            exit;
        }
        meta.from_devices = 1;
        gateway.apply();
        ports.apply();
        classify.apply(hdr.net, frame_bytes, meta.frame);
        if (hdr.net.ethernet.dst[40:40] == 1) {
            standard.mcast_grp = FLOOD;
            meta.to_devices = 1;
            meta.addressed = 1;
        } else if (bridge.apply().hit) {
            // A reply to a frame for another station would have that station's MAC address; bridges would learn a wrong port.
            meta.addressed = ~meta.to_devices;
        }
        meta.end = meta.frame.dst;
        if (meta.from_devices == 0) {
            meta.end = meta.frame.src;
        }
        // In an IPv6 packet, an IPv4-mapped address does not count as an IPv4 address.
        bool is_mapped = hdr.net.ipv6.isValid() && meta.end[127:32] == 0xffff;
        if (!is_mapped) {
            local.apply();
        }
        meta.local = meta.own & meta.addressed;
        bit<16> src_port = 0;
        bit<16> dst_port = 0;
        if (hdr.net.udp.isValid()) {
            src_port = hdr.net.udp.src_port;
            dst_port = hdr.net.udp.dst_port;
        }
        bool is_udp = meta.frame.kind == FRAME_UDP;
        bool ours = meta.local == 1 && is_udp && dst_port == LAP_PORT;
        bool is_data = meta.gate == GATE_SEALED && is_udp && dst_port == LAP_PORT && hdr.lap.isValid() && hdr.lap.magic == LAP_MAGIC
            && hdr.lap.version == LAP_VERSION && hdr.lap.type == LAP_DATA_UP;
        // Operations to perform for the device that sent the message, or for the destination device of the datagram.
        bool challenges = false;
        bool checks_tag = false;
        bool again = false;
        bool opens = false;
        bool seals = false;
        bool proves = false;
        // The result is sent as a digest unless the meter limits the rate.
        bool alarms = false;

        bool is_gated = meta.gate != GATE_OFF && !ours && !is_data;
        if (meta.from_devices == 0) {
            is_gated = meta.gate == GATE_SEALED && meta.to_devices == 1;
        }
        if (is_gated) {
            if (is_udp) {
                look_at_datagram();
                if (meta.listed == DHCP) {
                    meta.listed = UNLISTED;
                    if (!is_mapped) {
                        dhcp_servers.apply();
                    }
                }
            } else if (meta.frame.kind == FRAME_IP) {
                if (hdr.icmpv6.isValid()) {
                    meta.device_end = meta.frame.src;
                    if (meta.from_devices == 0) {
                        meta.device_end = meta.frame.dst;
                    }
                    device_end_prefixes.apply();
                    end_prefixes.apply();
                }
                if (hdr.message.isValid()) {
                    look_at_message();
                }
            } else if (meta.frame.kind == FRAME_ARP) {
                look_at_arp();
            } else if (meta.frame.kind == FRAME_OTHER) {
                control_protocols.apply();
            } else if (meta.frame.kind == FRAME_EXTENSION) {
                look_for_report();
            }
        }

        if (meta.from_devices == 0) {
            if (meta.gate != GATE_SEALED || meta.to_devices == 0) {
                meta.verdict = LW_PASS_FOREIGN;
            } else if (meta.frame.kind == FRAME_BROKEN || meta.frame.kind == FRAME_UDP_LENGTH) {
                meta.verdict = LW_DROP_TRUNCATED;
            } else if (meta.frame.kind == FRAME_FRAGMENT) {
                meta.verdict = LW_DROP_GATE_FRAGMENT;
            } else if (meta.frame.kind == FRAME_EXTENSION) {
                meta.verdict = LW_DROP_GATE_EXTENSION;
            } else if (meta.listed == LISTED) {
                meta.verdict = LW_PASS_ALWAYS;
            } else if (!is_udp || dst_port == LAP_PORT) {
                meta.verdict = LW_DROP_UNSEALED;
            } else if (meta.frame.payload_bytes + 8 != meta.frame.ip_payload_bytes) {
                meta.verdict = LW_DROP_LENGTH;
            } else {
                spread_address(meta.frame.dst);
                find_receiver();
                if (meta.verdict == UNDECIDED) {
                    // Length of the whole packet.
                    bit<16> packet_bytes = meta.frame.ip_payload_bytes + LAP_DATA_BYTES;
                    if (hdr.net.ipv4.isValid()) {
                        packet_bytes = packet_bytes + 20;
                    } else {
                        packet_bytes = packet_bytes + 40;
                    }
                    if (packet_bytes > meta.mtu || meta.frame.payload_bytes > PAYLOAD_BYTES) {
                        meta.verdict = LW_DROP_TOO_BIG;
                    } else {
                        read_session();
                        take_number();
                        seals = meta.verdict == UNDECIDED;
                    }
                }
            }
        } else if (ours || is_data) {
            if (meta.frame.answerable == 0) {
                meta.verdict = LW_DROP_UNANSWERABLE;
            } else {
                lap_order.apply(hdr.lap, hdr.lap_body, hdr.lap_data, meta.frame.payload_bytes, meta.verdict);
            }
            bool responds = hdr.lap.type == LAP_RESPONSE;
            if (meta.verdict == UNDECIDED) {
                if (is_data) {
                    if (meta.frame.payload_bytes + 8 != meta.frame.ip_payload_bytes) {
                        meta.verdict = LW_DROP_LENGTH;
                    } else if ((hdr.net.ipv4.isValid() && hdr.lap_data.port == 68)
                            || (hdr.net.ipv6.isValid() && hdr.lap_data.port == 546)) {
                        meta.verdict = LW_DROP_GATE_ROLE;
                    } else if (hdr.lap_data.port == 0 || hdr.lap_data.port == LAP_PORT) {
                        meta.verdict = LW_DROP_GATE_PORT;
                    }
                } else if (hdr.lap.type == LAP_REQUEST || responds) {
                    read_fresh();
                    if (meta.is_set == 0 || meta.fresh == 0 || standard.ingress_global_timestamp > meta.fresh_until) {
                        meta.verdict = LW_DROP_STOPPED;
                    } else {
                        device_sources.apply();
                        if (meta.admitted == 0) {
                            meta.verdict = LW_DROP_SOURCE_NOT_DEVICE;
                        } else if (responds && hdr.lap_body.w2[31:0] != meta.gateway_id) {
                            meta.verdict = LW_DROP_GATEWAY;
                        }
                    }
                } else if (hdr.lap.type == LAP_DATA_UP) {
                    meta.verdict = LW_DROP_GATE_NOT_SEALED;
                } else if (hdr.lap.type != LAP_PROOF) {
                    meta.verdict = LW_DROP_DIRECTION;
                } else if (meta.attests == 0) {
                    meta.verdict = LW_DROP_UNSUPPORTED_TYPE;
                } else if (hdr.lap_proof.gateway_id != meta.gateway_id) {
                    meta.verdict = LW_DROP_GATEWAY;
                } else {
                    read_round();
                    if (meta.number == 0 || meta.number != hdr.lap_proof.round || meta.nonce != hdr.lap_proof.nonce) {
                        meta.verdict = LW_DROP_ROUND;
                    } else if (standard.ingress_global_timestamp > meta.until) {
                        meta.verdict = LW_DROP_LATE;
                    } else if (!provers.apply().hit) {
                        meta.verdict = LW_DROP_UNKNOWN_PROVER;
                    } else {
                        read_proved();
                        if (meta.verdict == UNDECIDED) {
                            if (!proof_keys.apply().hit) {
                                meta.verdict = LW_DROP_NO_KEY;
                            }
                        }
                        proves = meta.verdict == UNDECIDED;
                    }
                }
            }
            if (meta.verdict == UNDECIDED && !proves) {
                if (devices.apply().hit) {
                    read_line();
                    if (meta.revoked == 1) {
                        meta.verdict = LW_DROP_REVOKED;
                    }
                } else {
                    meta.verdict = LW_DROP_UNKNOWN_DEVICE;
                    bool is_admission = !is_data && meta.slow == 1;
                    if (is_admission && responds) {
                        is_admission = hdr.lap_body.w3 != 0 && (hdr.lap_body.w3 == meta.fresh || hdr.lap_body.w3 == meta.fresh_before);
                    }
                    if (is_admission && meta.filtering == 1) {
                        is_admission = enrolled.apply().hit;
                    }
                    if (is_admission && responds) {
                        if (expected.apply().hit) {
                            take_expected();
                        }
                    }
                    if (meta.is_expected == 1) {
                        meta.verdict = LW_SLOW_PATH;
                    } else if (is_admission) {
                        // Half of the rate is for all sources, the other half only for sources with little traffic. Addresses
                        // may be forged, so dropped messages do not count against a source.
                        bit<2> of_source;
                        bit<2> of_all;
                        hash(meta.source_bucket, HashAlgorithm.crc32, 32w0, { meta.frame.src }, (bit<32>)SOURCES);
                        sources.execute_meter(meta.source_bucket, of_source);
                        if (responds) {
                            unsolicited_responses.execute_meter(ALL_SOURCES, of_all);
                        } else {
                            unknown_requests.execute_meter(ALL_SOURCES, of_all);
                        }
                        if (of_all != 0 && of_source == 0) {
                            if (responds) {
                                unsolicited_responses.execute_meter(QUIET_SOURCES, of_all);
                            } else {
                                unknown_requests.execute_meter(QUIET_SOURCES, of_all);
                            }
                        }
                        meta.verdict = LW_SLOW_PATH;
                        if (of_all != 0) {
                            meta.verdict = LW_DROP_SHED;
                        }
                    }
                }
            }
            if (meta.verdict == UNDECIDED && !proves) {
                read_session();
                meta.place = hdr.lap.flags[0:0] ++ src_port ++ meta.ingress ++ meta.frame.vlans ++ hdr.net.ethernet.src;
                bool is_live = meta.session_id != 0 && standard.ingress_global_timestamp < meta.session_end;
                if (is_data) {
                    meta.seq = hdr.lap_data.seq;
                    if (meta.session_id == 0 || hdr.lap_data.session_id != meta.session_id) {
                        meta.verdict = LW_DROP_SESSION;
                    } else if (!is_live) {
                        meta.verdict = LW_DROP_SESSION_EXPIRED;
                    } else if (meta.frame.src != meta.address) {
                        meta.verdict = LW_DROP_SOURCE;
                    } else {
                        mark_number(0);
                        if (meta.verdict == UNDECIDED && meta.frame.payload_bytes > LAP_DATA_BYTES + PAYLOAD_BYTES) {
                            meta.verdict = LW_DROP_TOO_BIG;
                        }
                        opens = meta.verdict == UNDECIDED;
                    }
                } else {
                    if (meta.key_mode == 1) {
                        keys.apply();
                    } else {
                        rows.apply();
                    }
                    if (!responds) {
                        bit<2> color = 0;
                        bit<8> reason = NAK_NO_ROWS;
                        if (meta.stopping == 1) {
                            reason = NAK_STOPPING;
                        }
                        if (meta.stopping == 0 && meta.has_row == 1) {
                            challenges = true;
                        } else {
                            naks.execute_meter(0, color);
                            if (color != 0) {
                                meta.verdict = LW_DROP_NAK_LIMIT;
                            } else {
                                meta.verdict = LW_REPLY_NAK;
                                hdr.lap.type = LAP_NAK;
                                hdr.lap_body.w0 = meta.next ++ reason ++ 24w0;
                                hdr.lap_body.w1 = 0;
                            }
                        }
                    } else if (meta.next != 0 && hdr.lap_body.w2[63:32] == meta.next - 1) {
                        if (is_live && meta.session_id == hdr.lap_body.w4 && meta.tag1 == hdr.lap_body.w5
                                && meta.address == meta.frame.src && meta.session_place[104:0] == meta.place[104:0]) {
                            again = true;
                        } else {
                            meta.verdict = LW_DROP_REPLAY;
                        }
                    } else if (hdr.lap_body.w2[63:32] != meta.next) {
                        meta.verdict = LW_DROP_INDEX;
                    } else if (meta.has_row == 0) {
                        meta.verdict = LW_DROP_NO_ROWS;
                    } else if (hdr.lap_body.w3 == 0 || (hdr.lap_body.w3 != meta.fresh && hdr.lap_body.w3 != meta.fresh_before)) {
                        meta.verdict = LW_DROP_FRESH;
                    } else {
                        checks_tag = true;
                    }
                }
            }
        } else if (meta.gate == GATE_OFF) {
            if (meta.frame.kind == FRAME_UDP_LENGTH && meta.local == 1 && dst_port == LAP_PORT) {
                meta.verdict = LW_DROP_TRUNCATED;
            } else if ((meta.frame.kind == FRAME_FRAGMENT || meta.frame.kind == FRAME_EXTENSION) && meta.local == 1) {
                meta.verdict = LW_PASS_UNPARSED;
            } else {
                meta.verdict = LW_PASS_FOREIGN;
            }
        } else if (meta.frame.kind == FRAME_BROKEN || meta.frame.kind == FRAME_UDP_LENGTH) {
            meta.verdict = LW_DROP_TRUNCATED;
        } else if (meta.frame.kind == FRAME_TAG) {
            meta.verdict = LW_DROP_GATE_VLAN;
        } else if (meta.frame.kind == FRAME_FRAGMENT) {
            meta.verdict = LW_DROP_GATE_FRAGMENT;
        } else if (meta.frame.kind == FRAME_EXTENSION && meta.is_report == 0) {
            meta.verdict = LW_DROP_GATE_EXTENSION;
        } else if (meta.listed == LISTED) {
            meta.verdict = LW_PASS_ALWAYS;
        } else if (meta.listed == FORBIDDEN) {
            meta.verdict = LW_DROP_GATE_ROLE;
        } else if (is_udp && dst_port == LAP_PORT) {
            meta.verdict = LW_DROP_GATE_PORT;
        } else {
            meta.verdict = LW_DROP_GATE;
            if (meta.gate == GATE_BOUND) {
                meta.place = 1w0 ++ src_port ++ meta.ingress ++ meta.frame.vlans ++ hdr.net.ethernet.src;
                spread_mac();
                find_sender();
            }
            if (meta.verdict == LW_DROP_GATE && (meta.frame.kind == FRAME_OTHER || meta.frame.kind == FRAME_ARP)) {
                meta.verdict = LW_DROP_GATE_TYPE;
            }
        }

        if (proves) {
            TRY_KEY
            if (meta.difference != 0 && meta.has_alternate == 1) {
                use_other_key();
                TRY_KEY
            }
            if (meta.difference == 0) {
                prove();
            } else {
                meta.verdict = LW_DROP_PROOF;
                meta.alarm_number = meta.number;
                alarms = true;
            }
        }

        if (challenges || checks_tag) {
            if (challenges) {
                hdr.lap.type = LAP_CHALLENGE;
                meta.ig = meta.next ++ meta.gateway_id;
                meta.w5 = meta.challenge;
                meta.w6 = meta.fresh;
            } else {
                meta.ig = hdr.lap_body.w2;
                meta.w5 = hdr.lap_body.w3;
                meta.w6 = 0;
                if (hdr.lap.flags == LAP_FLAG_BOUND) {
                    meta.w6 = hdr.net.ethernet.src ++ 16w0;
                }
            }
            set_h0();
            hash_seven();
            if (challenges) {
                hdr.lap_body.w3 = hdr.lap_body.w0;
                hdr.lap_body.w0 = meta.ig;
                hdr.lap_body.w1 = meta.challenge;
                hdr.lap_body.w2 = meta.fresh;
                hdr.lap_body.w4 = meta.t0;
                hdr.lap_body.w5 = meta.t1;
                meta.verdict = LW_REPLY_CHALLENGE;
            } else {
                if (meta.t0 == hdr.lap_body.w4 && meta.t1 == hdr.lap_body.w5) {
                    meta.tag_fits = 1;
                }
                // Applies the meter before the RESPONSE opens a session, because no session may open without its digest.
                bit<2> renewal_color = 0;
                if (meta.key_mode == 1 && meta.tag_fits == 1) {
                    renewals.execute_meter(meta.device, renewal_color);
                }
                if (renewal_color == 0) {
                    spread_address(meta.frame.src);
                    spread_mac();
                    derive_session_key();
                    decide();
                } else {
                    meta.verdict = LW_DROP_BUSY;
                }
                if (meta.verdict == LW_REPLY_ACK) {
                    digest<session_digest_t>(1, { hdr.lap.device_id, hdr.lap.flags, hdr.lap_body.w0, hdr.lap_body.w1, hdr.lap_body.w2,
                                                  hdr.lap_body.w3, hdr.lap_body.w4, hdr.lap_body.w5, hdr.net.ethernet.src,
                                                  meta.frame.src, meta.ingress, standard.ingress_global_timestamp });
                    meta.session_id = hdr.lap_body.w4;
                    meta.opened_lifetime_s = meta.session_lifetime_s;
                } else if (meta.verdict == LW_DROP_TAG || meta.verdict == LW_DROP_MARK) {
                    meta.alarm_number = meta.next;
                    alarms = true;
                }
            }
        }
        if (alarms) {
            // Separate meters: a flood of wrong tags must not delay the digests that request higher marks for valid devices.
            bit<2> event_color;
            if (meta.verdict == LW_DROP_MARK) {
                credits.execute_meter(0, event_color);
            } else {
                events.execute_meter(0, event_color);
            }
            if (event_color == 0) {
                digest<event_digest_t>(2, { hdr.lap.device_id, meta.verdict, meta.alarm_number, meta.frame.src, meta.ingress });
            }
        }

        bool acknowledges = again || meta.verdict == LW_REPLY_ACK;
        if (acknowledges || opens || seals) {
            if (acknowledges) {
                hdr.lap.type = LAP_ACK;
                hdr.lap.flags = 0;
                meta.d1 = hdr.lap_body.w2[63:32] ++ meta.opened_lifetime_s;
                meta.d2 = meta.session_id;
                meta.peer0 = meta.frame.src[127:64];
                meta.peer1 = meta.frame.src[63:0];
            } else if (opens) {
                meta.d1 = hdr.lap_data.seq;
                meta.d2 = hdr.lap_data.port ++ 48w0;
                meta.peer0 = meta.frame.dst[127:64];
                meta.peer1 = meta.frame.dst[63:0];
            } else {
                hdr.lap.setValid();
                hdr.lap = { LAP_MAGIC, LAP_VERSION, LAP_DATA_DOWN, LAP_SUITE, 0, LAP_DATA_BYTES + meta.frame.payload_bytes,
                            meta.sealed_device };
                hdr.lap_data.setValid();
                hdr.lap_data = { meta.session_id, meta.seq, dst_port, 0, 0, 0 };
                meta.d1 = meta.seq;
                meta.d2 = dst_port ++ src_port ++ 32w0;
                meta.peer0 = meta.frame.src[127:64];
                meta.peer1 = meta.frame.src[63:0];
            }
            set_h0();
            hash_five();
#define HASH_WORD(i) if (hdr.words[i].isValid()) { hash_word(hdr.words[i].w); }
            HASH_WORD(0)
            HASH_WORD(1)
            HASH_WORD(2)
            HASH_WORD(3)
            HASH_WORD(4)
            HASH_WORD(5)
            HASH_WORD(6)
            HASH_WORD(7)
            HASH_WORD(8)
            HASH_WORD(9)
            HASH_WORD(10)
            HASH_WORD(11)
            HASH_WORD(12)
            HASH_WORD(13)
            HASH_WORD(14)
            HASH_WORD(15)
            bit<64> tail = 0;
            bool has_tail = true;
            if (hdr.tail1.isValid()) {
                tail = hdr.tail1.w ++ 56w0;
            } else if (hdr.tail2.isValid()) {
                tail = hdr.tail2.w ++ 48w0;
            } else if (hdr.tail3.isValid()) {
                tail = hdr.tail3.w ++ 40w0;
            } else if (hdr.tail4.isValid()) {
                tail = hdr.tail4.w ++ 32w0;
            } else if (hdr.tail5.isValid()) {
                tail = hdr.tail5.w ++ 24w0;
            } else if (hdr.tail6.isValid()) {
                tail = hdr.tail6.w ++ 16w0;
            } else if (hdr.tail7.isValid()) {
                tail = hdr.tail7.w ++ 8w0;
            } else {
                has_tail = false;
            }
            if (has_tail) {
                hash_word(tail);
            }
            finish_hash();
            if (acknowledges) {
                hdr.lap_body.w0 = meta.d1;
                hdr.lap_body.w1 = meta.d2;
                hdr.lap_body.w2 = meta.t0;
                hdr.lap_body.w3 = meta.t1;
                hdr.lap_body.w4 = meta.peer0;
                hdr.lap_body.w5 = meta.peer1;
                if (again) {
                    meta.verdict = LW_REPLY_ACK_REPEATED;
                }
            } else {
                // Removes the padding after the packet.
                bit<32> whole = frame_bytes - (bit<32>)meta.frame.room;
                if (hdr.net.ipv4.isValid()) {
                    whole = whole + 20;
                } else {
                    whole = whole + 40;
                }
                whole = whole + (bit<32>)meta.frame.ip_payload_bytes;
                if (opens) {
                    if (meta.t0 == hdr.lap_data.tag0 && meta.t1 == hdr.lap_data.tag1) {
                        mark_number(1);
                        if (meta.verdict == UNDECIDED) {
                            open_datagram();
                            truncate(whole - (bit<32>)LAP_DATA_BYTES);
                        }
                    } else {
                        meta.verdict = LW_DROP_TAG;
                    }
                } else {
                    seal_datagram();
                    truncate(whole + (bit<32>)LAP_DATA_BYTES);
                }
            }
        }

        if (meta.from_devices == 1 && meta.to_devices == 1 && meta.gate == GATE_SEALED && meta.verdict < 16
                && meta.verdict != LW_PASS_ALWAYS) {
            meta.verdict = LW_DROP_UNSEALED;
        }
        verdicts.count((bit<32>)meta.verdict);
        if (meta.from_devices == 1 && meta.verdict >= 32
                && (meta.frame.kind == FRAME_OTHER || meta.frame.kind == FRAME_ARP || meta.frame.kind == FRAME_TAG)) {
            gate_types.apply();
        }
        if (meta.verdict == LW_SLOW_PATH) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress = (bit<16>)meta.ingress;
            standard.mcast_grp = 0;
            standard.egress_spec = CPU_PORT;
        } else if (meta.verdict >= 32) {
            drop();
        } else if (meta.verdict >= 16) {
            turn_round.apply(hdr.net);
            standard.mcast_grp = 0;
            standard.egress_spec = meta.ingress;
        }
    }
}

#define BODY_WORDS(b) b.w0, b.w1, b.w2, b.w3, b.w4, b.w5
#define LAP_WORDS(l) l.magic, l.version, l.type, l.suite, l.flags, l.length, l.device_id
#define UDP_WORDS(u) 8w0, PROTOCOL_UDP, u.length, u.src_port, u.dst_port, u.length

control LapEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (meta.verdict >= 16 && meta.verdict < 32 && hdr.lap_body.isValid() && hdr.lap.isValid() && hdr.net.udp.isValid()) {
            if (hdr.net.ipv4.isValid()) {
                hash(meta.checksum, HashAlgorithm.csum16, 16w0, { hdr.net.ipv4.src, hdr.net.ipv4.dst, UDP_WORDS(hdr.net.udp),
                     LAP_WORDS(hdr.lap), BODY_WORDS(hdr.lap_body) }, 32w0x10000);
            } else if (hdr.net.ipv6.isValid()) {
                hash(meta.checksum, HashAlgorithm.csum16, 16w0, { hdr.net.ipv6.src, hdr.net.ipv6.dst, UDP_WORDS(hdr.net.udp),
                     LAP_WORDS(hdr.lap), BODY_WORDS(hdr.lap_body) }, 32w0x10000);
            }
            if (meta.checksum == 0) {
                meta.checksum = 0xffff;
            }
            hdr.net.udp.checksum = meta.checksum;
        }
        // Hosts at the ingress port have already received the frame.
        if (meta.verdict < 16 && standard.egress_port == meta.ingress) {
            mark_to_drop(standard);
        }
    }
}

control LapUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.verdict >= 16 && meta.verdict < 32 && hdr.net.ipv4.isValid(), IPV4_CHECKSUM_WORDS(hdr.net.ipv4), hdr.net.ipv4.checksum,
                        HashAlgorithm.csum16);
    }
}

control LapDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.net);
        packet.emit(hdr.arp);
        packet.emit(hdr.option4);
        packet.emit(hdr.hop_by_hop);
        packet.emit(hdr.message);
        packet.emit(hdr.icmpv6);
        packet.emit(hdr.timers);
        packet.emit(hdr.target);
        packet.emit(hdr.lap);
        packet.emit(hdr.lap_body);
        packet.emit(hdr.lap_data);
        packet.emit(hdr.lap_proof);
        packet.emit(hdr.proof);
        packet.emit(hdr.words);
        packet.emit(hdr.tail1);
        packet.emit(hdr.tail2);
        packet.emit(hdr.tail3);
        packet.emit(hdr.tail4);
        packet.emit(hdr.tail5);
        packet.emit(hdr.tail6);
        packet.emit(hdr.tail7);
    }
}

V1Switch(LapParser(), LapVerify(), LapIngress(), LapEgress(), LapUpdate(), LapDeparser()) main;
