//! Signed broadcast messages: Rapid Authentication and plain schemes, on CPU and GPU lanes behind a scheduler.
//!
//! | module | what |
//! |---|---|
//! | [`scheme`], [`message`], [`refusal`] | which schemes there are, the bytes of a message, why one is refused |
//! | [`ra`] | Rapid Authentication: layouts, hashes, masks, keys |
//! | [`key`] | keys of all schemes, in memory and as JSON |
//! | [`gpu`] | batches on a CUDA device, if there is one |
//! | [`lane`] | where equations are computed: one at a time, eight at a time, on a GPU |
//! | [`receive`] | from a datagram to a verified message: what is checked around a lane |
//! | [`scheduler`] | which lane works on which messages, when: queue, policies, the core without I/O, the engine with threads |
//! | [`calibration`] | what lanes take, measured before any message has come |
//! | [`service`] | receiver, scheduler and lanes as one |
//! | [`simulator`] | the scheduler in virtual time: traffic, lanes with measured rates, reports, policies side by side |
//! | [`signer`] | a key at work, with its table and masks |
//! | [`signing`] | signer, scheduler and lanes as one; masks made while nothing else is to do |
//! | [`store`] | private keys, tables and masks in files; revocations |
//! | [`udp`] | datagrams in batches |
//! | [`bsm`] | part I of SAE J2735's Basic Safety Message: UPER and JSON |

pub mod bsm;
pub mod calibration;
mod flood;
pub mod gpu;
pub mod key;
pub mod lane;
pub mod message;
pub mod ra;
mod range;
pub mod receive;
pub mod refusal;
mod reputation;
pub mod scheduler;
pub mod scheme;
pub mod service;
pub mod signer;
pub mod signing;
pub mod simulator;
mod source;
pub mod store;
pub mod udp;
