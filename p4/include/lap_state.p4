// Registers, tables and actions of lap.p4: body of its ingress control.
//
// simple_switch locks all registers of an action while the action runs, so each decision and its write are one action.
#ifndef LW_LAP_STATE_P4
#define LW_LAP_STATE_P4

// Words of a one's complement sum.
#define SUM64(x) ((bit<32>)(x)[63:48] + (bit<32>)(x)[47:32] + (bit<32>)(x)[31:16] + (bit<32>)(x)[15:0])
#define FOLD(x) x = (x & 0xffff) + (x >> 16); x = (x & 0xffff) + (x >> 16);

    register<bit<64>>(2) fresh;
    register<bit<48>>(1) fresh_until_us;
    register<bit<48>>(1) clock_us;
    // The gateway is stopping: REQUESTs get a NAK.
    register<bit<1>>(1) stopping;
    // Messages of devices that are not in `enrolled` are dropped.
    register<bit<1>>(1) filtering;
    // For each entry of `expected`: whether the RESPONSE is still expected.
    register<bit<1>>(EXPECTED) armed;

    // Registers by device.
    register<bit<32>>(DEVICES) next_idx;
    // 33 bits: a mark is at most 2^32.
    register<bit<33>>(DEVICES) marks;
    register<bit<1>>(DEVICES) revoked;
    register<bit<64>>(DEVICES) session_ids;
    register<bit<64>>(DEVICES) device_ids;
    register<bit<64>>(DEVICES) session_key0s;
    register<bit<64>>(DEVICES) session_key1s;
    register<bit<64>>(DEVICES) tag1s;
    register<bit<48>>(DEVICES) session_ends;
    register<bit<32>>(DEVICES) session_lifetimes;
    register<bit<128>>(DEVICES) addresses;
    register<bit<106>>(DEVICES) places;
    // Addresses of the gateway that the device uses.
    register<bit<48>>(DEVICES) gateway_macs;
    register<bit<128>>(DEVICES) gateway_addresses;
    register<bit<56>>(DEVICES) windows;
    register<bit<64>>(DEVICES) down_counts;
    // Bucket indices of the owner entries of the device.
    register<bit<32>>(DEVICES) address_buckets;
    register<bit<32>>(DEVICES) mac_buckets;

    // Secret factors of the hash from addresses to buckets.
    register<bit<64>>(5) bucket_keys;
    // Index of a device + 1, or 0. An entry counts only if the device has a live session with exactly the address looked up.
    register<bit<32>>(BUCKETS) address_owner0s;
    register<bit<32>>(BUCKETS) address_owner1s;
    register<bit<32>>(BUCKETS) mac_owner0s;
    register<bit<32>>(BUCKETS) mac_owner1s;

    counter(128, CounterType.packets) verdicts;
    meter(1, MeterType.packets) naks;
    // Limits of digests: `events` for wrong tags and PROOFs, `credits` for devices whose next row has reached the mark.
    meter(1, MeterType.packets) events;
    meter(1, MeterType.packets) credits;
    // Limit of valid RESPONSEs of each key-mode device, because no mark limits its rows.
    meter(DEVICES, MeterType.packets) renewals;
    // Slow-path limits: two halves (ALL_SOURCES, QUIET_SOURCES) each for REQUESTs and unexpected RESPONSEs; one limit per source.
    meter(2, MeterType.packets) unknown_requests;
    meter(2, MeterType.packets) unsolicited_responses;
    meter(SOURCES, MeterType.packets) sources;

    action set_gateway(bit<32> gateway_id, bit<32> session_lifetime_s, bit<2> gate, bit<16> mtu, bit<1> slow,
                       bit<1> attests, bit<1> dhcp4_is_named) {
        meta.is_set = 1;
        meta.gateway_id = gateway_id;
        meta.session_lifetime_s = session_lifetime_s;
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
    // A port is a device port unless this table lists it.
    table ports {
        key = { meta.ingress: exact; }
        actions = { services; NoAction; }
        default_action = NoAction();
        size = 512;
    }
    action is_own() {
        meta.own = 1;
    }
    // Addresses of the gateway; IPv4 as ::ffff:a.b.c.d.
    table local {
        key = { meta.end: exact; }
        actions = { is_own; NoAction; }
        default_action = NoAction();
        size = 16;
    }
    action admit() {
        meta.admitted = 1;
    }
    // Source prefixes of devices (1.4.13). Longer prefixes without `admit` are exceptions of shorter ones; IPv4 as ::ffff:a.b.c.d.
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

    // For devices without an entry in `devices`: devices that `filtering` admits, and RESPONSEs that the slow path expects.
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

    // An expected RESPONSE passes once.
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
        session_ends.read(meta.session_end, meta.device);
        session_lifetimes.read(meta.opened_lifetime_s, meta.device);
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
    // L(2) and the tag of the RESPONSE.
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

// Multiply-shift with secret factors (Dietzfelbinger 1996). The sum alone is linear: consecutive addresses would stay at equal
// distances, and whole fleets could collide. Folding and multiplication with an odd factor make all collisions equally likely.
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
    // Bound sessions are distinguished by MAC address, VLANs and port.
    action spread_mac() {
        READ_FACTORS
        k0 = k0 * (bit<64>)meta.place[31:0] + k1 * (bit<64>)meta.place[63:32] + k2 * (bit<64>)meta.place[88:64] + k3;
        TAKE_BUCKETS(k0, meta.mac_bucket, meta.mac_bucket_b)
    }

// State of a bucket slot for the device: free, owned by the device, or owned by another live session.
#define READ_OWNER(owners, bucket, buckets, same, place, free, own, owned) \
    owners.read(holder, bucket); \
    if (holder == 0) { \
        free = free | place; \
    } else { \
        holder = holder - 1; \
        if (holder == meta.device) { \
            own = own | place; \
        } else { \
            session_ids.read(other_session, holder); \
            session_ends.read(other_until, holder); \
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
// Bits of `free` and `own`, lowest first in use: a second slot is used only if both first slots are occupied.
#define READ_OWNERS(owner0s, owner1s, bucket, bucket_b, buckets, same, free, own, owned) \
    READ_OWNER(owner0s, bucket, buckets, same, 1, free, own, owned) \
    READ_OWNER(owner0s, bucket_b, buckets, same, 2, free, own, owned) \
    READ_OWNER(owner1s, bucket, buckets, same, 4, free, own, owned) \
    READ_OWNER(owner1s, bucket_b, buckets, same, 8, free, own, owned)
// The device's own slot has precedence over a free slot.
#define CLAIM_SLOT(owner0s, owner1s, bucket, bucket_b, buckets, free, own) \
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

    // Decides on a current RESPONSE with a valid or invalid tag. A RESPONSE that passes spends the row and opens the session.
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
        READ_OWNERS(address_owner0s, address_owner1s, meta.address_bucket, meta.address_bucket_b, address_buckets, SAME_ADDRESS,
                    free, own, owned)
        if (meta.place[105:105] == 1) {
            READ_OWNERS(mac_owner0s, mac_owner1s, meta.mac_bucket, meta.mac_bucket_b, mac_buckets, SAME_MAC,
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
            // The 48-bit clock overflows after nine years.
            bit<64> until = (bit<64>)standard.ingress_global_timestamp + (bit<64>)meta.session_lifetime_s * 1000000;
            if (until > 0xffffffffffff) {
                until = 0xffffffffffff;
            }
            session_ends.write(meta.device, until[47:0]);
            session_lifetimes.write(meta.device, meta.session_lifetime_s);
            addresses.write(meta.device, meta.frame.src);
            places.write(meta.device, meta.place);
            gateway_macs.write(meta.device, hdr.net.ethernet.dst);
            gateway_addresses.write(meta.device, meta.frame.dst);
            windows.write(meta.device, 0);
            down_counts.write(meta.device, 0);
            CLAIM_SLOT(address_owner0s, address_owner1s, meta.address_bucket, meta.address_bucket_b, address_buckets, free, own)
            if (meta.place[105:105] == 1) {
                CLAIM_SLOT(mac_owner0s, mac_owner1s, meta.mac_bucket, meta.mac_bucket_b, mac_buckets, mac_free, mac_own)
            }
        }
    }

// Whether a live session of this slot covers the sender.
#define FIND_SENDER(owners, bucket) \
    owners.read(holder, bucket); \
    if (holder != 0) { \
        holder = holder - 1; \
        session_ids.read(other_session, holder); \
        revoked.read(other_revoked, holder); \
        places.read(other_place, holder); \
        session_ends.read(other_until, holder); \
        if (other_session != 0 && other_revoked == 0 && SAME_MAC) { \
            if (other_until > standard.ingress_global_timestamp) { \
                meta.verdict = LW_PASS_SESSION; \
            } else if (meta.verdict == LW_DROP_GATE) { \
                meta.verdict = LW_DROP_SESSION_EXPIRED; \
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
        FIND_SENDER(mac_owner0s, meta.mac_bucket)
        FIND_SENDER(mac_owner0s, meta.mac_bucket_b)
        FIND_SENDER(mac_owner1s, meta.mac_bucket)
        FIND_SENDER(mac_owner1s, meta.mac_bucket_b)
    }

// Device whose live session has the destination address.
#define FIND_RECEIVER(owners, bucket) \
    owners.read(holder, bucket); \
    if (holder != 0) { \
        holder = holder - 1; \
        session_ids.read(other_session, holder); \
        revoked.read(other_revoked, holder); \
        addresses.read(other_address, holder); \
        session_ends.read(other_until, holder); \
        if (other_session != 0 && other_revoked == 0 && other_address == meta.frame.dst) { \
            if (other_until > standard.ingress_global_timestamp) { \
                meta.verdict = UNDECIDED; \
                meta.device = holder; \
                device_ids.read(meta.sealed_device, holder); \
            } else if (meta.verdict == LW_DROP_SESSION) { \
                meta.verdict = LW_DROP_SESSION_EXPIRED; \
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
        FIND_RECEIVER(address_owner0s, meta.address_bucket)
        FIND_RECEIVER(address_owner0s, meta.address_bucket_b)
        FIND_RECEIVER(address_owner1s, meta.address_bucket)
        FIND_RECEIVER(address_owner1s, meta.address_bucket_b)
    }
    // A sequence number is used once, and only in the session whose key seals the packet.
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

    // Marks seq in the replay window of the session whose key opened the packet. Without `commits` only checks whether seq is acceptable.
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

// Incremental checksum update for inserted or removed words (RFC 1624).
#define LAP_SUM (SUM64(meta.h0) + SUM64(hdr.lap.device_id) + SUM64(hdr.lap_data.session_id) + SUM64(hdr.lap_data.seq) \
    + (bit<32>)hdr.lap_data.port + SUM64(hdr.lap_data.tag0) + SUM64(hdr.lap_data.tag1))
#define CHANGE_LENGTH(header_sum, length, change) \
    meta.sum = (bit<32>)(~header_sum) + (bit<32>)(~length); length = length change; meta.sum = meta.sum + (bit<32>)length; \
    FOLD(meta.sum) header_sum = ~meta.sum[15:0];

    // Removes the LAP header: the opened payload is forwarded to its port.
    action open_datagram() {
        // Removed words: 28 of the message, two lengths, the port.
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
    // Inserts the LAP header, whose fields are already set.
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
