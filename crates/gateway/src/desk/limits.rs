//! How much a desk hands on, of all and of each (LAP/1 1.7.2).

use std::collections::HashMap;

use linewarden_protocol::ids::{DeviceId, SessionId};

/// Tickets handed on, a second: each asks the registry.
const HANDED_ON_PER_S: u32 = 500;
/// Of these for devices that have more than their share.
const BEYOND_SHARES_PER_S: u32 = 250;
/// Messages of one device that go to the controller, a second.
const HANDED_ON_PER_DEVICE_AND_S: u32 = 10;
/// Copies of one question that go to the controller, a second, as long as it has not answered. Anybody who has seen a question can
/// send copies, so that they must leave the device room for the next one.
const COPIES_PER_S: u32 = 2;
/// A device's share is one question a second, and so many may be saved up.
const SHARE_MAX: u64 = 5;
/// A device that asks for more than its share, served or not, has its share again when it has been silent for so long, s, less
/// what may be saved up.
const ASKED_MAX: u64 = 15;
/// Devices that are remembered. One that is forgotten has its whole share.
const DEVICES_MAX: usize = 8_192;

/// Counts within seconds of the monotonic clock, and shares across them.
#[derive(Debug, Default)]
pub(super) struct Limits {
    second: u64,
    handed_on: u32,
    beyond_shares: u32,
    devices: HashMap<DeviceId, Asking>,
}

/// A question: its session, and its serial number in that session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) session: SessionId,
    pub(super) serial: u64,
}

/// What becomes of a question that was proven to be of a session that is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It goes to the controller, if [`Limits::answer`] has no answer to it by then.
    HandOn(Question),
    /// A copy of one that was answered: this is the answer.
    Answered(Vec<u8>),
    /// It is older than another one of its session, or above a limit.
    Refused,
}

/// What one device has asked.
#[derive(Debug)]
struct Asking {
    session: SessionId,
    /// Of its newest question in that session.
    serial: u64,
    /// The answer to that.
    answer: Option<Vec<u8>>,
    /// In which second that was handed on, and how often in it.
    copies: (u64, u32),
    /// In which second anything was, and how often in it.
    handed_on: (u64, u32),
    /// From which second on it has its whole share again.
    whole_at: u64,
}

impl Asking {
    fn newest(&self) -> Question {
        Question {
            session: self.session,
            serial: self.serial,
        }
    }
}

/// A count that begins anew with each second.
fn of_second((at, count): (u64, u32), second: u64) -> u32 {
    if at == second { count } else { 0 }
}

impl Limits {
    /// Decides about a question that was proven to be of a session that is here, of which the data plane has kept the newest serial
    /// number, 0 for none. Devices that ask for more than their share, or
    /// did so a moment ago, may use half of what is handed on, however many they are: the other half is for those that do not. A
    /// question that is older than another one of its session was answered or given up; copies of the newest one take nothing of
    /// the device's share.
    pub(super) fn admit(
        &mut self,
        device: DeviceId,
        (session, noted): (SessionId, u64),
        serial: u64,
        now_ns: u64,
    ) -> Admission {
        self.turn_to(now_ns);
        let second = self.second;
        let asking = self.devices.entry(device).or_insert(Asking {
            session,
            serial: noted,
            answer: None,
            copies: (second, 0),
            handed_on: (second, 0),
            whole_at: second,
        });
        if asking.session != session {
            (asking.session, asking.serial, asking.answer) = (session, noted, None);
        }
        if serial == 0 || serial < asking.serial {
            return Admission::Refused;
        }
        let is_new = serial > asking.serial;
        let asked = asking.whole_at.saturating_sub(second);
        if is_new {
            (asking.serial, asking.answer, asking.copies) = (serial, None, (second, 0));
            asking.whole_at = second + (asked + 1).min(ASKED_MAX);
        }
        if let Some(answer) = &asking.answer {
            return Admission::Answered(answer.clone());
        }
        let copies = of_second(asking.copies, second);
        let of_device = of_second(asking.handed_on, second);
        if copies >= COPIES_PER_S
            || of_device >= HANDED_ON_PER_DEVICE_AND_S
            || self.handed_on >= HANDED_ON_PER_S
        {
            return Admission::Refused;
        }
        if asked >= SHARE_MAX {
            if self.beyond_shares >= BEYOND_SHARES_PER_S {
                return Admission::Refused;
            }
            self.beyond_shares += 1;
        }
        asking.copies = (second, copies + 1);
        asking.handed_on = (second, of_device + 1);
        self.handed_on += 1;
        Admission::HandOn(Question { session, serial })
    }

    /// The answer to a question of this device, if that is the newest one and was answered since it was admitted.
    pub(super) fn answer(&self, device: DeviceId, question: Question) -> Option<Vec<u8>> {
        let asking = self.devices.get(&device)?;
        asking.answer.clone().filter(|_| asking.newest() == question)
    }

    /// Keeps the controller's answer to a question of this device. Only the answer to the newest one is kept: a newer question may have
    /// been admitted before this one was answered.
    pub(super) fn keep_answer(&mut self, device: DeviceId, question: Question, answer: &[u8]) {
        let asking = self.devices.get_mut(&device);
        if let Some(asking) = asking.filter(|asking| asking.newest() == question) {
            asking.answer = Some(answer.to_vec());
        }
    }

    fn turn_to(&mut self, now_ns: u64) {
        let second = now_ns / 1_000_000_000;
        if second == self.second {
            return;
        }
        (self.second, self.handed_on, self.beyond_shares) = (second, 0, 0);
        if self.devices.len() > DEVICES_MAX {
            self.devices.retain(|_, asking| asking.whole_at > second);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NS: u64 = 1_000_000_000;

    fn session(number: u8) -> SessionId {
        SessionId::from_wire([number; 8]).unwrap()
    }

    fn question(number: u8, serial: u64) -> Question {
        Question {
            session: session(number),
            serial,
        }
    }

    /// Gives each question the next serial number.
    #[derive(Default)]
    struct Desk {
        limits: Limits,
        serial: u64,
    }

    impl Desk {
        fn ask(&mut self, device: u64, at_ns: u64) -> bool {
            self.serial += 1;
            let admission = self
                .limits
                .admit(DeviceId(device), (session(1), 0), self.serial, at_ns);
            matches!(admission, Admission::HandOn(_))
        }
    }

    #[test]
    fn a_device_has_ten_a_second_and_all_together_five_hundred() {
        let mut desk = Desk::default();
        let of_one = (0..1_000).filter(|_| desk.ask(1, NS)).count();
        assert_eq!(of_one, 10);
        let devices = (0..100_000).filter(|n| desk.ask(*n, 2 * NS)).count();
        assert_eq!(devices, 500);
    }

    /// A thousand devices ask as often as they are let, each second before all others.
    #[test]
    fn many_devices_that_ask_too_often_leave_half_to_the_others() {
        let mut desk = Desk::default();
        let mut honest = 0;
        for second in 1..=100 {
            let of_greedy = (0..1_000 * 20)
                .filter(|n| desk.ask(1 + n % 1_000, second * NS))
                .count();
            // Once the shares that were saved up are gone.
            assert!(second < 20 || of_greedy <= 250, "{of_greedy} in second {second}");
            // Each asks every 10 s.
            let mut asking = (0..50).map(|n| 10_000 + 50 * (second % 10) + n);
            honest += asking
                .by_ref()
                .filter(|device| desk.ask(*device, second * NS))
                .count();
        }
        assert!(honest >= 50 * 80, "{honest} of 5000");
    }

    #[test]
    fn a_device_alone_may_have_more_than_its_share() {
        let mut desk = Desk::default();
        for second in 1..=20 {
            let got = (0..20).filter(|_| desk.ask(1, second * NS)).count();
            assert_eq!(got, 10, "as its rows need that are renewed");
        }
    }

    /// Somebody on the device's segment has recorded all that it has asked in its session, and sends it again and again.
    #[test]
    fn copies_of_a_devices_questions_leave_room_for_its_next_one() {
        let mut limits = Limits::default();
        let ask = |limits: &mut Limits, session: SessionId, serial, second: u64| {
            limits.admit(DeviceId(1), (session, 0), serial, second * NS)
        };
        for serial in 1..=100 {
            let mut count = |serial, wanted: Admission| {
                let copies = (0..1_000).filter(|_| ask(&mut limits, session(1), serial, 7) == wanted);
                copies.count()
            };
            // Ten a second, two of each.
            let handed_on = count(serial, Admission::HandOn(question(1, serial)));
            assert_eq!(handed_on, if serial <= 5 { 2 } else { 0 }, "of question {serial}");
            assert_eq!(
                count(serial - 1, Admission::Refused),
                1_000,
                "before question {serial}"
            );
        }
        for serial in 101..=200 {
            let new = question(1, serial);
            let first = ask(&mut limits, session(1), serial, serial);
            assert_eq!(first, Admission::HandOn(new));
            limits.keep_answer(DeviceId(1), new, b"answer");
            let again = ask(&mut limits, session(1), serial, serial);
            assert_eq!(
                again,
                Admission::Answered(b"answer".to_vec()),
                "copies cost nothing"
            );
        }
        let new = ask(&mut limits, session(2), 1, 201);
        assert_eq!(
            new,
            Admission::HandOn(question(2, 1)),
            "a new session counts anew"
        );
    }

    #[test]
    fn an_answer_is_kept_only_for_the_newest_question() {
        let mut limits = Limits::default();
        let admit =
            |limits: &mut Limits, of: Question| limits.admit(DeviceId(1), (of.session, 0), of.serial, NS);
        let (first, second, renewed) = (question(1, 1), question(1, 2), question(2, 2));
        for (older, newer) in [(first, second), (second, renewed)] {
            assert_eq!(admit(&mut limits, older), Admission::HandOn(older));
            assert_eq!(admit(&mut limits, newer), Admission::HandOn(newer));
            limits.keep_answer(DeviceId(1), older, b"older");
            assert_eq!(limits.answer(DeviceId(1), newer), None);
            assert_eq!(admit(&mut limits, newer), Admission::HandOn(newer));
            limits.keep_answer(DeviceId(1), newer, b"newer");
            assert_eq!(limits.answer(DeviceId(1), newer), Some(b"newer".to_vec()));
            assert_eq!(limits.answer(DeviceId(1), older), None);
            limits = Limits::default();
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut desk = Desk::default();
        for second in 1..=100 {
            for n in 0..500 {
                desk.ask(second * 500 + n, second * NS);
            }
            assert!(desk.limits.devices.len() <= DEVICES_MAX + 500);
        }
    }
}
