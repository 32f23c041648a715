//! The memory shared by CPUs and user space, word by word, with a scheduler that controls every access.
//!
//! Actors are `async` functions that await before each access; polling an actor once performs exactly one access. So
//! the code of an actor is linear, the compiler keeps its program counter, and a seeded scheduler interleaves the
//! accesses of all actors. Accesses take effect in the order in which they are made: weaker memory orders are tested
//! in each data plane.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::keys::AuthKey;

use super::invariants::{Access, Invariants};

/// One 64-bit word of a line. Half 0 of a 16-byte value holds its first eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    Commit,
    Window,
    SessionId,
    Challenge,
    Key(usize),
    SessionExpires,
    Ingress,
    SessionKey(usize),
    Tag(usize),
    Addr(usize),
    SessionLifetime,
    Port,
    Mac,
    Vlans,
    Bound,
    RingChallenge(usize),
    RingKey(usize, usize),
}

const RING_OFFSET: usize = 19;

impl Word {
    fn index(self) -> usize {
        match self {
            Self::Commit => 0,
            Self::Window => 1,
            Self::SessionId => 2,
            Self::Challenge => 3,
            Self::Key(half) => 4 + half,
            Self::SessionExpires => 6,
            Self::Ingress => 7,
            Self::SessionKey(half) => 8 + half,
            Self::Tag(half) => 10 + half,
            Self::Addr(half) => 12 + half,
            Self::SessionLifetime => 14,
            Self::Port => 15,
            Self::Mac => 16,
            Self::Vlans => 17,
            Self::Bound => 18,
            Self::RingChallenge(slot) => RING_OFFSET + 3 * slot,
            Self::RingKey(slot, half) => RING_OFFSET + 3 * slot + 1 + half,
        }
    }
}

/// A device's line and its ring of rows ahead.
#[derive(Clone)]
pub struct Line(Vec<u64>);

impl Line {
    pub fn new(ring_rows: usize) -> Self {
        Self(vec![0; RING_OFFSET + 3 * ring_rows])
    }

    pub fn get(&self, word: Word) -> u64 {
        self.0[word.index()]
    }

    pub fn set(&mut self, word: Word, value: u64) {
        self.0[word.index()] = value;
    }

    /// Two words as 16 bytes.
    pub fn pair(&self, word: fn(usize) -> Word) -> [u8; 16] {
        join([self.get(word(0)), self.get(word(1))])
    }

    pub fn row(&self) -> Row {
        Row {
            challenge: self.get(Word::Challenge).to_be_bytes(),
            auth_key: AuthKey::from_bytes(self.pair(Word::Key)),
        }
    }
}

/// A 16-byte value as two words.
pub fn split(bytes: &[u8; 16]) -> [u64; 2] {
    let [first, second] = linewarden_protocol::keys::halves(bytes);
    [u64::from_be_bytes(first), u64::from_be_bytes(second)]
}

/// Two words as a 16-byte value.
pub fn join(words: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0u8; 16];
    bytes[..8].copy_from_slice(&words[0].to_be_bytes());
    bytes[8..].copy_from_slice(&words[1].to_be_bytes());
    bytes
}

/// A MAC address as a word.
pub fn mac_word(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// VLANs as a word.
pub fn vlans_word(vlans: [u16; 2]) -> u64 {
    u64::from(vlans[0]) << 16 | u64::from(vlans[1])
}

/// Freshness values, the time when the current value was drawn, and whether the gateway is stopping.
#[derive(Clone, Copy, Debug, Default)]
pub struct Control {
    pub fresh_current: u64,
    pub fresh_previous: u64,
    pub drawn_at_monotonic_ms: u64,
    pub stopping: bool,
}

pub struct State {
    pub gateway: GatewayId,
    pub lines: Vec<Line>,
    /// By line: whether the line's device is installed. A lookup by device id finds only installed devices.
    pub installed: Vec<bool>,
    pub control: Control,
    pub invariants: Rc<RefCell<Invariants>>,
}

/// An actor's handle on the memory.
#[derive(Clone)]
pub struct Memory {
    state: Rc<RefCell<State>>,
    actor: u32,
}

impl Memory {
    pub fn new(state: State) -> Self {
        Self {
            state: Rc::new(RefCell::new(state)),
            actor: 0,
        }
    }

    /// Returns the same memory, for another actor.
    pub fn for_actor(&self, actor: u32) -> Self {
        Self {
            state: Rc::clone(&self.state),
            actor,
        }
    }

    /// Reads everything at once, which only the test can do.
    pub fn inspect<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.borrow())
    }

    /// Changes anything at once, for setup and while no actor runs.
    pub fn arrange<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.borrow_mut())
    }

    pub fn invariants(&self) -> Rc<RefCell<Invariants>> {
        Rc::clone(&self.state.borrow().invariants)
    }

    pub async fn control(&self) -> Control {
        Turn::default().await;
        self.state.borrow().control
    }

    pub async fn load(&self, line: usize, word: Word) -> u64 {
        Turn::default().await;
        self.state.borrow().lines[line].get(word)
    }

    pub async fn load_pair(&self, line: usize, word: fn(usize) -> Word) -> [u8; 16] {
        join([self.load(line, word(0)).await, self.load(line, word(1)).await])
    }

    pub async fn store(&self, line: usize, word: Word, value: u64) {
        self.update(line, word, |_| Some(value)).await;
    }

    pub async fn store_pair(&self, line: usize, word: fn(usize) -> Word, value: &[u8; 16]) {
        let words = split(value);
        self.store(line, word(0), words[0]).await;
        self.store(line, word(1), words[1]).await;
    }

    pub async fn exchange(&self, line: usize, word: Word, value: u64) -> u64 {
        self.update(line, word, |_| Some(value)).await
    }

    pub async fn compare_and_swap(&self, line: usize, word: Word, expected: u64, next: u64) -> bool {
        self.update(line, word, |current| (current == expected).then_some(next))
            .await
            == expected
    }

    /// One atomic read-modify-write; returns the value before.
    pub async fn update(&self, line: usize, word: Word, change: impl FnOnce(u64) -> Option<u64>) -> u64 {
        Turn::default().await;
        let mut state = self.state.borrow_mut();
        let before = state.lines[line].get(word);
        if let Some(after) = change(before) {
            state.lines[line].set(word, after);
            let invariants = Rc::clone(&state.invariants);
            let access = Access {
                actor: self.actor,
                gateway: state.gateway,
                line,
                word,
                before,
                after,
            };
            invariants.borrow_mut().record_write(access, &state.lines[line]);
        }
        before
    }
}

/// Yields to the scheduler once.
#[derive(Default)]
struct Turn {
    has_yielded: bool,
}

impl Future for Turn {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.has_yielded {
            return Poll::Ready(());
        }
        self.has_yielded = true;
        Poll::Pending
    }
}

/// A running actor.
pub type Actor<T> = Pin<Box<dyn Future<Output = T>>>;

/// Lets an actor perform its next access. Returns the actor's result after its last access.
pub fn step<T>(actor: &mut Actor<T>) -> Option<T> {
    match actor.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Runs an actor to its end without interleaving.
pub fn finish<T>(actor: &mut Actor<T>) -> T {
    loop {
        if let Some(result) = step(actor) {
            return result;
        }
    }
}
