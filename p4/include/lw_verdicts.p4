// Generated from crates/protocol/src/verdict.rs; `make generate` writes it, a test compares it.
#ifndef LW_VERDICTS_P4
#define LW_VERDICTS_P4

typedef bit<8> lw_verdict_t;
const lw_verdict_t LW_PASS_FOREIGN = 1;
const lw_verdict_t LW_PASS_ALWAYS = 2;
const lw_verdict_t LW_PASS_SESSION = 3;
const lw_verdict_t LW_PASS_UNPARSED = 4;
const lw_verdict_t LW_PASS_DATA = 5;
const lw_verdict_t LW_PASS_SEALED = 6;
const lw_verdict_t LW_REPLY_CHALLENGE = 16;
const lw_verdict_t LW_REPLY_ACK = 17;
const lw_verdict_t LW_REPLY_ACK_AGAIN = 18;
const lw_verdict_t LW_REPLY_NAK = 19;
const lw_verdict_t LW_REPLY_CLASSIC_CHALLENGE = 20;
const lw_verdict_t LW_REPLY_CLASSIC_ACK = 21;
const lw_verdict_t LW_DROP_LENGTH = 32;
const lw_verdict_t LW_DROP_MAGIC = 33;
const lw_verdict_t LW_DROP_VERSION = 34;
const lw_verdict_t LW_DROP_TYPE = 35;
const lw_verdict_t LW_DROP_SUITE = 36;
const lw_verdict_t LW_DROP_FLAGS = 37;
const lw_verdict_t LW_DROP_DEVICE_ZERO = 38;
const lw_verdict_t LW_DROP_RESERVED = 39;
const lw_verdict_t LW_DROP_DIRECTION = 40;
const lw_verdict_t LW_DROP_UNSUPPORTED_TYPE = 41;
const lw_verdict_t LW_DROP_TRUNCATED = 42;
const lw_verdict_t LW_DROP_UNANSWERABLE = 43;
const lw_verdict_t LW_DROP_SHED = 46;
const lw_verdict_t LW_SLOW_PATH = 47;
const lw_verdict_t LW_DROP_UNKNOWN_DEVICE = 48;
const lw_verdict_t LW_DROP_REVOKED = 49;
const lw_verdict_t LW_DROP_BUSY = 50;
const lw_verdict_t LW_DROP_NO_ROWS = 51;
const lw_verdict_t LW_DROP_NAK_LIMIT = 52;
const lw_verdict_t LW_DROP_INDEX = 53;
const lw_verdict_t LW_DROP_GATEWAY = 54;
const lw_verdict_t LW_DROP_FRESH = 55;
const lw_verdict_t LW_DROP_STOPPED = 56;
const lw_verdict_t LW_DROP_TAG = 57;
const lw_verdict_t LW_DROP_LOST_RACE = 58;
const lw_verdict_t LW_DROP_ADDRESS_OWNED = 59;
const lw_verdict_t LW_DROP_REPLAY = 60;
const lw_verdict_t LW_DROP_TABLE_FULL = 61;
const lw_verdict_t LW_DROP_SESSION_ZERO = 62;
const lw_verdict_t LW_DROP_MARK = 63;
const lw_verdict_t LW_DROP_GATE = 64;
const lw_verdict_t LW_DROP_GATE_FRAGMENT = 65;
const lw_verdict_t LW_DROP_GATE_EXTENSION = 66;
const lw_verdict_t LW_DROP_GATE_PORT = 67;
const lw_verdict_t LW_DROP_GATE_LEASE = 68;
const lw_verdict_t LW_DROP_UNSEALED = 69;
const lw_verdict_t LW_DROP_TOO_BIG = 70;
const lw_verdict_t LW_DROP_SEGMENTS = 71;
const lw_verdict_t LW_DROP_NOT_SEALED = 72;
const lw_verdict_t LW_DROP_SESSION = 73;
const lw_verdict_t LW_DROP_SOURCE = 74;
const lw_verdict_t LW_DROP_SEQUENCE = 75;
const lw_verdict_t LW_DROP_EXHAUSTED = 76;
const lw_verdict_t LW_DROP_CLASSIC_MALFORMED = 80;
const lw_verdict_t LW_DROP_CLASSIC_UNKNOWN = 81;
const lw_verdict_t LW_DROP_CLASSIC_HASH = 82;

#endif
