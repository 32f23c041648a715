//! A common view of a device's memory, with which tests compare the oracle and both stores.

use std::sync::atomic::Ordering::Acquire;

use linewarden_dataplane::Store;
use linewarden_dataplane::layout::BOUND;
use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::gateway::LineView;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::window::Window;

/// The contents of a line and its session. Generations are relative to the one at the installation: a store continues
/// the slot's previous generations, and the oracle begins at 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub idx: u32,
    /// The generation, which each win increments.
    pub wins: u32,
    pub flags: u64,
    pub session_id: [u8; 8],
    pub challenge: [u8; 8],
    pub auth_key: [u8; 16],
    pub rows_ahead: u32,
    /// `None` before the first session since the installation.
    pub session: Option<SessionView>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    pub session_key: [u8; 16],
    pub tag: [u8; 16],
    pub addr: [u8; 16],
    pub port: u16,
    pub mac: [u8; 6],
    pub vlans: [u16; 2],
    pub bound: bool,
    pub ingress: u32,
    pub window_top_and_bitmap: u64,
    /// The window's generation, counted like `wins`, modulo 256.
    pub window_wins: u8,
}

/// The oracle's view, and the second in which the session ends. The latter may deviate by one between data planes.
pub fn of_oracle(line: &LineView) -> (View, u32) {
    let session = &line.session;
    let view = View {
        idx: line.commit.idx().0,
        wins: line.commit.generation(),
        flags: line.commit.0 & 0xff,
        session_id: line.session_id,
        challenge: line.challenge,
        auth_key: *line.auth_key.as_bytes(),
        rows_ahead: u32::try_from(line.rows_ahead).unwrap(),
        session: (session.tag != [0; 16]).then(|| SessionView {
            session_key: *session.session_key.as_bytes(),
            tag: session.tag,
            addr: session.addr,
            port: session.port,
            mac: session.mac,
            vlans: session.vlans,
            bound: session.bound,
            ingress: line.ingress,
            window_top_and_bitmap: line.window.0 & !(0xff << 56),
            window_wins: line.window.generation(),
        }),
    };
    (view, line.session_expires_s)
}

/// The view of a store, and the second in which the session ends. `generation` is the line's generation at its
/// installation. `had_session` is true if the device has had a session since its installation.
pub fn of_store(store: &Store, device: DeviceId, generation: u32, had_session: bool) -> (View, u32) {
    let (line, place) = store.line(device).unwrap();
    let session = &store.regions().sessions[place.slot as usize];
    let commit = CommitWord(line.commit.load(Acquire));
    let window = Window(line.window.load(Acquire));
    let ring = store.geometry().ring as usize;
    let rows = &store.regions().rows[place.slot as usize * ring..][..ring];
    let present = rows.iter().filter(|row| row.auth_key[1].load(Acquire) != 0);
    let wire = |word: u64| word.to_ne_bytes();
    let pair = |words: &[std::sync::atomic::AtomicU64; 2]| {
        let bytes = [wire(words[0].load(Acquire)), wire(words[1].load(Acquire))].concat();
        <[u8; 16]>::try_from(bytes).unwrap()
    };
    let vlan = session.vlan[0].load(Acquire);
    let mac: Vec<u8> = session
        .mac
        .iter()
        .flat_map(|part| part.load(Acquire).to_ne_bytes())
        .collect();
    let view = View {
        idx: commit.idx().0,
        wins: commit.generation().wrapping_sub(generation) & 0xff_ffff,
        flags: commit.0 & 0xff,
        session_id: wire(line.session_id.load(Acquire)),
        challenge: wire(line.challenge.load(Acquire)),
        auth_key: pair(&line.auth_key),
        rows_ahead: u32::try_from(present.count()).unwrap(),
        session: had_session.then(|| SessionView {
            session_key: pair(&session.session_key),
            tag: pair(&session.tag),
            addr: pair(&session.addr),
            port: u16::from_be(session.port.load(Acquire)),
            mac: mac.try_into().unwrap(),
            vlans: [vlan & !BOUND, session.vlan[1].load(Acquire)],
            bound: vlan & BOUND != 0,
            ingress: session.ingress.load(Acquire),
            window_top_and_bitmap: window.0 & !(0xff << 56),
            window_wins: window.generation().wrapping_sub(generation as u8),
        }),
    };
    (view, line.session_until_s.load(Acquire))
}
