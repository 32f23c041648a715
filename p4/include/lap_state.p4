// Registers, tables and actions of lap.p4: the inside of its ingress control.
//
// simple_switch runs an action under the locks of all registers that it names, so what decides and what writes is one action.
#ifndef LW_LAP_STATE_P4
#define LW_LAP_STATE_P4

// The words of a sum in ones' complement.
#define SUM64(x) ((bit<32>)(x)[63:48] + (bit<32>)(x)[47:32] + (bit<32>)(x)[31:16] + (bit<32>)(x)[15:0])
#define FOLD(x) x = (x & 0xffff) + (x >> 16); x = (x & 0xffff) + (x >> 16);

    register<bit<64>>(2) fresh;
    register<bit<48>>(1) fresh_until_us;
    register<bit<48>>(1) clock_us;
    // Of the gateway: REQUESTs get a NAK.
    register<bit<1>>(1) stopping;
    // Likewise: messages of devices that are not in `enrolled` are dropped.
    register<bit<1>>(1) filtering;
    // By slot: the RESPONSE is still expected.
    register<bit<1>>(EXPECTED) armed;

    // By device.
    register<bit<32>>(DEVICES) next_idx;
    // No row has a number above 2^32.
    register<bit<33>>(DEVICES) marks;
    register<bit<1>>(DEVICES) revoked;
    register<bit<64>>(DEVICES) session_ids;
    register<bit<64>>(DEVICES) device_ids;
    register<bit<64>>(DEVICES) session_key0s;
    register<bit<64>>(DEVICES) session_key1s;
    register<bit<64>>(DEVICES) tag1s;
    register<bit<48>>(DEVICES) lease_untils;
    register<bit<32>>(DEVICES) lease_lengths;
    register<bit<128>>(DEVICES) addresses;
    register<bit<106>>(DEVICES) places;
    // As whom it knows the gateway.
    register<bit<48>>(DEVICES) own_macs;
    register<bit<128>>(DEVICES) own_addresses;
    register<bit<56>>(DEVICES) windows;
    register<bit<64>>(DEVICES) down_counts;
    // Where its entries lie.
    register<bit<32>>(DEVICES) address_buckets;
    register<bit<32>>(DEVICES) mac_buckets;

    // Secret factors of the hash that spreads addresses over buckets.
    register<bit<64>>(5) bucket_keys;
    // Device + 1. A hint: it is believed only if the device's session lives and carries that very address.
    register<bit<32>>(BUCKETS) address_owner0s;
    register<bit<32>>(BUCKETS) address_owner1s;
    register<bit<32>>(BUCKETS) mac_owner0s;
    register<bit<32>>(BUCKETS) mac_owner1s;

    counter(128, CounterType.packets) verdicts;
    meter(1, MeterType.packets) naks;
    // Of wrong tags and proofs, and of devices whose rows are above their mark.
    meter(1, MeterType.packets) events;
    meter(1, MeterType.packets) credits;
    // Of RESPONSEs of a device of key mode whose tag fits: its rows cost it nothing.
    meter(DEVICES, MeterType.packets) renewals;
    // To the slow path: REQUESTs, RESPONSEs that nobody expects, each in halves (ANYBODY, SCARCE), and both by their source.
    meter(2, MeterType.packets) strangers;
    meter(2, MeterType.packets) unasked;
    meter(SOURCES, MeterType.packets) sources;

    action set_gateway(bit<32> gateway_id, bit<32> lease_s, bit<2> gate, bit<16> mtu, bit<1> slow,
                       bit<1> attests, bit<1> dhcp4_is_named) {
        meta.is_set = 1;
        meta.gateway_id = gateway_id;
        meta.lease_s = lease_s;
        meta.gate = gate;
        meta.mtu = mtu;
        meta.slow = slow;
        meta.attests = attests;
        meta.dhcp4_is_named = dhcp4_is_named;
    }
    table gateway {
        actions = { set_gateway; NoAction; }
        default_action = NoAction();
    }

    action services() {
        meta.from_devices = 0;
    }
    // A port is the devices' unless it is named here.
    table ports {
        key = { meta.ingress: exact; }
        actions = { services; NoAction; }
        default_action = NoAction();
        size = 512;
    }
    action is_own() {
        meta.own = 1;
    }
    // The gateway's addresses; IPv4 is ::ffff:a.b.c.d here.
    table local {
        key = { meta.end: exact; }
        actions = { is_own; NoAction; }
        default_action = NoAction();
        size = 16;
    }
    action admit() {
        meta.admitted = 1;
    }
    // Where devices are (1.4.13). Longer prefixes without `admit` are taken out of shorter ones; IPv4 is ::ffff:a.b.c.d here.
    table device_sources {
        key = { meta.frame.src: lpm; }
        actions = { admit; NoAction; }
        default_action = NoAction();
        size = 1024;
    }
    action drop() {
        mark_to_drop(standard);
    }
    action to_port(bit<9> port, bit<1> devices) {
        standard.egress_spec = port;
        meta.to_devices = devices;
    }
    table bridge {
        key = { hdr.net.ethernet.dst: exact; }
        actions = { to_port; drop; }
        default_action = drop();
        size = 65536;
    }

    action set_device(bit<32> device, bit<1> key_mode) {
        meta.device = device;
        meta.key_mode = key_mode;
    }
    table devices {
        key = { hdr.lap.device_id: exact; }
        actions = { set_device; NoAction; }
        default_action = NoAction();
        size = DEVICES;
    }
    action set_row(bit<64> challenge, bit<64> key0, bit<64> key1) {
        meta.has_row = 1;
        meta.challenge = challenge;
        meta.key0 = key0;
        meta.key1 = key1;
    }
    table rows {
        key = { meta.device: exact; meta.next: exact; }
        actions = { set_row; NoAction; }
        default_action = NoAction();
        size = 1048576;
    }
    action set_key(bit<64> key0, bit<64> key1) {
        meta.has_row = 1;
        meta.challenge = 0;
        meta.key0 = key0;
        meta.key1 = key1;
    }
    table keys {
        key = { meta.device: exact; }
        actions = { set_key; NoAction; }
        default_action = NoAction();
        size = DEVICES;
    }

    // Of devices that are not here: who may ask, and to what the slow path has sent a CHALLENGE.
    table enrolled {
        key = { hdr.lap.device_id: exact; }
        actions = { NoAction; }
        default_action = NoAction();
        size = 1048576;
    }
    action set_expected(bit<32> slot) {
        meta.slot = slot;
    }
    table expected {
        key = { hdr.lap.device_id: exact; hdr.lap_body.w0: exact; hdr.lap_body.w1: exact; }
        actions = { set_expected; NoAction; }
        default_action = NoAction();
        size = EXPECTED;
    }

    // It passes once.
    action take_expected() {
        armed.read(meta.is_expected, meta.slot);
        armed.write(meta.slot, 0);
    }

    action read_fresh() {
        fresh.read(meta.fresh, 0);
        fresh.read(meta.fresh_before, 1);
        fresh_until_us.read(meta.fresh_until, 0);
        stopping.read(meta.stopping, 0);
        filtering.read(meta.filtering, 0);
    }
    action read_line() {
        next_idx.read(meta.next, meta.device);
        revoked.read(meta.revoked, meta.device);
    }
    action read_session() {
        session_ids.read(meta.session_id, meta.device);
        session_key0s.read(meta.session_key0, meta.device);
        session_key1s.read(meta.session_key1, meta.device);
        tag1s.read(meta.tag1, meta.device);
        lease_untils.read(meta.lease_until, meta.device);
        lease_lengths.read(meta.session_lease_s, meta.device);
        addresses.read(meta.address, meta.device);
        places.read(meta.session_place, meta.device);
        windows.read(meta.window, meta.device);
    }

    action hash_seven() {
        SIP_BEGIN(meta.sip, meta.key0, meta.key1)
        SIP_ABSORB(meta.sip, meta.h0)
        SIP_ABSORB(meta.sip, hdr.lap.device_id)
        SIP_ABSORB(meta.sip, hdr.lap_body.w0)
        SIP_ABSORB(meta.sip, hdr.lap_body.w1)
        SIP_ABSORB(meta.sip, meta.ig)
        SIP_ABSORB(meta.sip, meta.w5)
        SIP_ABSORB(meta.sip, meta.w6)
        SIP_FINISH(meta.sip, 8w56, meta.t0, meta.t1)
    }
    // L(2), and the tag of the RESPONSE.
    action derive_session_key() {
        SIP_BEGIN(meta.sip, meta.key0, meta.key1)
        SIP_ABSORB(meta.sip, 64w0x0000010201000000)
        SIP_ABSORB(meta.sip, hdr.lap_body.w4)
        SIP_ABSORB(meta.sip, hdr.lap_body.w5)
        SIP_FINISH(meta.sip, 8w24, meta.session_key0, meta.session_key1)
    }
    action hash_five() {
        SIP_BEGIN(meta.sip, meta.session_key0, meta.session_key1)
        SIP_ABSORB(meta.sip, meta.h0)
        SIP_ABSORB(meta.sip, meta.d1)
        SIP_ABSORB(meta.sip, meta.d2)
        SIP_ABSORB(meta.sip, meta.peer0)
        SIP_ABSORB(meta.sip, meta.peer1)
        meta.hashed = 40;
    }
    action hash_word(in bit<64> w) {
        SIP_ABSORB(meta.sip, w)
        meta.hashed = meta.hashed + 8;
    }
    action finish_hash() {
        SIP_FINISH(meta.sip, meta.hashed, meta.t0, meta.t1)
    }

// Multiply-shift with secret factors (Dietzfelbinger 1996). The sum alone is linear: addresses in a row would keep their distances, and
// whole fleets meet. Folding and another factor, which is odd, make any two as likely to meet as others.
#define READ_FACTORS \
    bit<64> k0; bit<64> k1; bit<64> k2; bit<64> k3; bit<64> k4; \
    bucket_keys.read(k0, 0); bucket_keys.read(k1, 1); bucket_keys.read(k2, 2); bucket_keys.read(k3, 3); bucket_keys.read(k4, 4);
#define TAKE_BUCKETS(sum, bucket, bucket_b) \
    sum = (sum ^ (sum >> 32)) * k4; \
    bucket = (bit<32>)sum[63:46]; \
    bucket_b = (bit<32>)sum[45:28];
    action spread_address(in bit<128> address) {
        READ_FACTORS
        k0 = k0 * (bit<64>)address[31:0] + k1 * (bit<64>)address[63:32] + k2 * (bit<64>)address[95:64] + k3 * (bit<64>)address[127:96];
        TAKE_BUCKETS(k0, meta.address_bucket, meta.address_bucket_b)
    }
    // Bound sessions are told apart by MAC address, VLANs and port.
    action spread_mac() {
        READ_FACTORS
        k0 = k0 * (bit<64>)meta.place[31:0] + k1 * (bit<64>)meta.place[63:32] + k2 * (bit<64>)meta.place[88:64] + k3;
        TAKE_BUCKETS(k0, meta.mac_bucket, meta.mac_bucket_b)
    }

// How a place of a bucket stands to the device: free, its own, or another's live session's.
#define LOOK_AT(owners, bucket, buckets, same, place, free, own, owned) \
    owners.read(holder, bucket); \
    if (holder == 0) { \
        free = free | place; \
    } else { \
        holder = holder - 1; \
        if (holder == meta.device) { \
            own = own | place; \
        } else { \
            session_ids.read(other_session, holder); \
            lease_untils.read(other_until, holder); \
            revoked.read(other_revoked, holder); \
            buckets.read(other_bucket, holder); \
            addresses.read(other_address, holder); \
            places.read(other_place, holder); \
            if (other_session == 0 || other_until <= standard.ingress_global_timestamp || other_revoked == 1 \
                    || other_bucket != bucket) { \
                free = free | place; \
            } else if (same) { \
                owned = 1; \
            } \
        } \
    }
#define SAME_ADDRESS other_address == meta.frame.src
#define SAME_MAC other_place[105:105] == 1 && other_place[88:0] == meta.place[88:0]
// In this order, so that second places fill only where both first ones are taken.
#define LOOK_AT_ALL(owner0s, owner1s, bucket, bucket_b, buckets, same, free, own, owned) \
    LOOK_AT(owner0s, bucket, buckets, same, 1, free, own, owned) \
    LOOK_AT(owner0s, bucket_b, buckets, same, 2, free, own, owned) \
    LOOK_AT(owner1s, bucket, buckets, same, 4, free, own, owned) \
    LOOK_AT(owner1s, bucket_b, buckets, same, 8, free, own, owned)
// Its own place before a free one.
#define SETTLE(owner0s, owner1s, bucket, bucket_b, buckets, free, own) \
    if (own != 0) { \
        free = own; \
    } \
    if (free[0:0] == 1) { \
        owner0s.write(bucket, meta.device + 1); \
    } else if (free[1:1] == 1) { \
        bucket = bucket_b; \
        owner0s.write(bucket, meta.device + 1); \
    } else if (free[2:2] == 1) { \
        owner1s.write(bucket, meta.device + 1); \
    } else { \
        bucket = bucket_b; \
        owner1s.write(bucket, meta.device + 1); \
    } \
    buckets.write(meta.device, bucket);

    // A RESPONSE that is current, with a tag that fits or not: decides, and if it wins spends the row and opens the session.
    action decide() {
        bit<32> next;
        bit<33> mark;
        bit<1> gone;
        bit<32> holder;
        bit<64> other_session;
        bit<48> other_until;
        bit<1> other_revoked;
        bit<32> other_bucket;
        bit<128> other_address;
        bit<106> other_place;
        bit<4> free = 0;
        bit<4> own = 0;
        bit<1> owned = 0;
        bit<4> mac_free = 0;
        bit<4> mac_own = 0;
        bit<1> mac_owned = 0;
        next_idx.read(next, meta.device);
        marks.read(mark, meta.device);
        revoked.read(gone, meta.device);
        LOOK_AT_ALL(address_owner0s, address_owner1s, meta.address_bucket, meta.address_bucket_b, address_buckets, SAME_ADDRESS,
                    free, own, owned)
        if (meta.place[105:105] == 1) {
            LOOK_AT_ALL(mac_owner0s, mac_owner1s, meta.mac_bucket, meta.mac_bucket_b, mac_buckets, SAME_MAC,
                        mac_free, mac_own, mac_owned)
        } else {
            mac_free = 1;
        }
        meta.verdict = LW_REPLY_ACK;
        if (owned == 1) {
            meta.verdict = LW_DROP_ADDRESS_OWNED;
        } else if (free == 0 && own == 0) {
            meta.verdict = LW_DROP_TABLE_FULL;
        } else if (mac_owned == 1) {
            meta.verdict = LW_DROP_ADDRESS_OWNED;
        } else if (mac_free == 0 && mac_own == 0) {
            meta.verdict = LW_DROP_TABLE_FULL;
        } else if (meta.tag_fits == 0) {
            meta.verdict = LW_DROP_TAG;
        } else if (meta.key_mode == 0 && (bit<33>)next >= mark) {
            meta.verdict = LW_DROP_MARK;
        } else if (hdr.lap_body.w4 == 0) {
            meta.verdict = LW_DROP_SESSION_ZERO;
        } else if (next == 0xffffffff) {
            meta.verdict = LW_DROP_NO_ROWS;
        } else if (next != meta.next) {
            meta.verdict = LW_DROP_LOST_RACE;
        } else if (gone == 1) {
            meta.verdict = LW_DROP_REVOKED;
        } else {
            next_idx.write(meta.device, next + 1);
            session_ids.write(meta.device, hdr.lap_body.w4);
            device_ids.write(meta.device, hdr.lap.device_id);
            tag1s.write(meta.device, hdr.lap_body.w5);
            session_key0s.write(meta.device, meta.session_key0);
            session_key1s.write(meta.device, meta.session_key1);
            // The clock ends after nine years.
            bit<64> until = (bit<64>)standard.ingress_global_timestamp + (bit<64>)meta.lease_s * 1000000;
            if (until > 0xffffffffffff) {
                until = 0xffffffffffff;
            }
            lease_untils.write(meta.device, until[47:0]);
            lease_lengths.write(meta.device, meta.lease_s);
            addresses.write(meta.device, meta.frame.src);
            places.write(meta.device, meta.place);
            own_macs.write(meta.device, hdr.net.ethernet.dst);
            own_addresses.write(meta.device, meta.frame.dst);
            windows.write(meta.device, 0);
            down_counts.write(meta.device, 0);
            SETTLE(address_owner0s, address_owner1s, meta.address_bucket, meta.address_bucket_b, address_buckets, free, own)
            if (meta.place[105:105] == 1) {
                SETTLE(mac_owner0s, mac_owner1s, meta.mac_bucket, meta.mac_bucket_b, mac_buckets, mac_free, mac_own)
            }
        }
    }

// Whether a live session of that place covers the sender.
#define LOOK_FOR_SENDER(owners, bucket) \
    owners.read(holder, bucket); \
    if (holder != 0) { \
        holder = holder - 1; \
        session_ids.read(other_session, holder); \
        revoked.read(other_revoked, holder); \
        places.read(other_place, holder); \
        lease_untils.read(other_until, holder); \
        if (other_session != 0 && other_revoked == 0 && SAME_MAC) { \
            if (other_until > standard.ingress_global_timestamp) { \
                meta.verdict = LW_PASS_SESSION; \
            } else if (meta.verdict == LW_DROP_GATE) { \
                meta.verdict = LW_DROP_GATE_LEASE; \
            } \
        } \
    }
    action find_sender() {
        bit<32> holder;
        bit<64> other_session;
        bit<48> other_until;
        bit<1> other_revoked;
        bit<106> other_place;
        meta.verdict = LW_DROP_GATE;
        LOOK_FOR_SENDER(mac_owner0s, meta.mac_bucket)
        LOOK_FOR_SENDER(mac_owner0s, meta.mac_bucket_b)
        LOOK_FOR_SENDER(mac_owner1s, meta.mac_bucket)
        LOOK_FOR_SENDER(mac_owner1s, meta.mac_bucket_b)
    }

// The device whose live session has the destination address.
#define LOOK_FOR_RECEIVER(owners, bucket) \
    owners.read(holder, bucket); \
    if (holder != 0) { \
        holder = holder - 1; \
        session_ids.read(other_session, holder); \
        revoked.read(other_revoked, holder); \
        addresses.read(other_address, holder); \
        lease_untils.read(other_until, holder); \
        if (other_session != 0 && other_revoked == 0 && other_address == meta.frame.dst) { \
            if (other_until > standard.ingress_global_timestamp) { \
                meta.verdict = UNDECIDED; \
                meta.device = holder; \
                device_ids.read(meta.sealed_device, holder); \
            } else if (meta.verdict == LW_DROP_SESSION) { \
                meta.verdict = LW_DROP_GATE_LEASE; \
            } \
        } \
    }
    action find_receiver() {
        bit<32> holder;
        bit<64> other_session;
        bit<48> other_until;
        bit<1> other_revoked;
        bit<128> other_address;
        meta.verdict = LW_DROP_SESSION;
        LOOK_FOR_RECEIVER(address_owner0s, meta.address_bucket)
        LOOK_FOR_RECEIVER(address_owner0s, meta.address_bucket_b)
        LOOK_FOR_RECEIVER(address_owner1s, meta.address_bucket)
        LOOK_FOR_RECEIVER(address_owner1s, meta.address_bucket_b)
    }
    // A number is taken once, and only in the session whose key seals.
    action take_number() {
        bit<64> now_session;
        bit<64> count;
        session_ids.read(now_session, meta.device);
        down_counts.read(count, meta.device);
        if (now_session != meta.session_id) {
            meta.verdict = LW_DROP_BUSY;
        } else {
            count = count + 1;
            down_counts.write(meta.device, count);
            meta.seq = count;
            if (count > 0xffffffff) {
                meta.verdict = LW_DROP_EXHAUSTED;
            }
        }
    }

    // Marks seq in the window of the session under whose key it was opened; `commits`: else it is only looked whether it could be.
    action mark_number(in bit<1> commits) {
        bit<64> now_session;
        bit<56> window;
        bit<32> seq = meta.seq[31:0];
        bit<32> behind;
        bit<64> bitmap;
        session_ids.read(now_session, meta.device);
        windows.read(window, meta.device);
        bitmap = (bit<64>)window[23:0];
        if (now_session != meta.session_id) {
            meta.verdict = LW_DROP_BUSY;
        } else if (meta.seq[63:32] != 0 || seq == 0) {
            meta.verdict = LW_DROP_SEQUENCE;
        } else if (seq > window[55:24]) {
            behind = seq - window[55:24];
            if (behind >= 24) {
                behind = 24;
            }
            bitmap = ((bitmap << behind[7:0]) | 1) & 0xffffff;
            if (commits == 1) {
                windows.write(meta.device, seq ++ bitmap[23:0]);
            }
        } else {
            behind = window[55:24] - seq;
            if (behind >= 24) {
                meta.verdict = LW_DROP_SEQUENCE;
            } else if ((bitmap >> behind[7:0]) & 1 == 1) {
                meta.verdict = LW_DROP_SEQUENCE;
            } else if (commits == 1) {
                windows.write(meta.device, window | (bit<56>)((64w1 << behind[7:0])));
            }
        }
    }

// A datagram whose checksum changes by what is put in or taken out (RFC 1624).
#define LAP_SUM (SUM64(meta.h0) + SUM64(hdr.lap.device_id) + SUM64(hdr.lap_data.session_id) + SUM64(hdr.lap_data.seq) \
    + (bit<32>)hdr.lap_data.port + SUM64(hdr.lap_data.tag0) + SUM64(hdr.lap_data.tag1))
#define CHANGE_LENGTH(header_sum, length, change) \
    meta.sum = (bit<32>)(~header_sum) + (bit<32>)(~length); length = length change; meta.sum = meta.sum + (bit<32>)length; \
    FOLD(meta.sum) header_sum = ~meta.sum[15:0];

    // Takes the LAP header out: what was sealed goes on to its port.
    action open_datagram() {
        // Words that go: 28 of the message, two lengths, the port.
        meta.gone = LAP_SUM + (bit<32>)hdr.net.udp.length + (bit<32>)hdr.net.udp.length + (bit<32>)hdr.net.udp.dst_port;
        if (hdr.net.ipv4.isValid()) {
            CHANGE_LENGTH(hdr.net.ipv4.checksum, hdr.net.ipv4.total_length, - LAP_DATA_BYTES)
        } else {
            hdr.net.ipv6.payload_length = hdr.net.ipv6.payload_length - LAP_DATA_BYTES;
        }
        hdr.net.udp.length = hdr.net.udp.length - LAP_DATA_BYTES;
        hdr.net.udp.dst_port = hdr.lap_data.port;
        FOLD(meta.gone)
        meta.sum = (bit<32>)(~hdr.net.udp.checksum) + (bit<32>)(~meta.gone[15:0]) + (bit<32>)hdr.net.udp.length
            + (bit<32>)hdr.net.udp.length + (bit<32>)hdr.net.udp.dst_port;
        FOLD(meta.sum)
        if (hdr.net.udp.checksum != 0 || hdr.net.ipv6.isValid()) {
            hdr.net.udp.checksum = ~meta.sum[15:0];
            if (hdr.net.udp.checksum == 0) {
                hdr.net.udp.checksum = 0xffff;
            }
        }
        hdr.lap.setInvalid();
        hdr.lap_data.setInvalid();
        meta.verdict = LW_PASS_DATA;
    }
    // Puts it in; the header stands already.
    action seal_datagram() {
        hdr.lap_data.tag0 = meta.t0;
        hdr.lap_data.tag1 = meta.t1;
        meta.sum = (bit<32>)(~hdr.net.udp.checksum) + LAP_SUM + 2 * (bit<32>)LAP_DATA_BYTES;
        FOLD(meta.sum)
        if (hdr.net.udp.checksum != 0 || hdr.net.ipv6.isValid()) {
            hdr.net.udp.checksum = ~meta.sum[15:0];
            if (hdr.net.udp.checksum == 0) {
                hdr.net.udp.checksum = 0xffff;
            }
        }
        if (hdr.net.ipv4.isValid()) {
            CHANGE_LENGTH(hdr.net.ipv4.checksum, hdr.net.ipv4.total_length, + LAP_DATA_BYTES)
        } else {
            hdr.net.ipv6.payload_length = hdr.net.ipv6.payload_length + LAP_DATA_BYTES;
        }
        hdr.net.udp.length = hdr.net.udp.length + LAP_DATA_BYTES;
        meta.verdict = LW_PASS_SEALED;
    }
    action set_h0() {
        meta.h0 = hdr.lap.magic ++ hdr.lap.version ++ hdr.lap.type ++ hdr.lap.suite ++ hdr.lap.flags ++ hdr.lap.length;
    }

#endif
