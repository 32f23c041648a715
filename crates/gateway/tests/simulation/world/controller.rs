//! The controller's side: questions and answers may be lost.

use linewarden_gateway::{Answer, Ask, LinkError};
use rand::RngExt as _;

use super::{Rule, World};

fn lost<T>() -> Result<T, LinkError> {
    Err(LinkError::Failed("lost".to_owned()))
}

impl World {
    /// The controller answers, or the question or the answer is lost.
    pub(super) fn ask(&mut self, at: usize, ask: Ask) -> Answer {
        let fate = if self.calm {
            9
        } else {
            self.rng.random_range(0..12)
        };
        if fate < 2 {
            self.tally.link_failures += 1;
        }
        let (process, runtime) = (&mut self.processes[at], &self.runtime);
        if fate == 0 {
            return match ask {
                Ask::Enter => Answer::Entered(lost()),
                Ask::Resume => Answer::Chunk(lost()),
                Ask::Lease(_) => Answer::Rows(lost()),
                Ask::Receive { .. } => Answer::Receptions(lost()),
                Ask::Settle(_) => Answer::Settled(lost()),
                Ask::Changes { .. } => Answer::Changes(lost()),
            };
        }
        let link = process.link.clone();
        macro_rules! answered {
            ($kind:path, $question:expr) => {{
                let answer = runtime.block_on($question).map_err(Into::into);
                $kind(if fate == 1 { lost() } else { answer })
            }};
        }
        match ask {
            Ask::Enter => Answer::Entered(Ok(link.number())),
            Ask::Resume => {
                // A chunk that is lost would be gone: the link brings it or fails before.
                let leases = process.leases.get_or_insert_with(|| link.held());
                Answer::Chunk(runtime.block_on(leases.next_chunk()).map_err(Into::into))
            }
            Ask::Lease(wants) => answered!(Answer::Rows, link.lease(&wants)),
            Ask::Receive { knocks, fresh } => answered!(Answer::Receptions, link.receive(&knocks, fresh)),
            Ask::Settle(settlements) => {
                if self.without == Some(Rule::Settling) {
                    return Answer::Settled(Ok(0));
                }
                answered!(Answer::Settled, link.settle(&settlements))
            }
            Ask::Changes { since } => answered!(Answer::Changes, link.changes(since)),
        }
    }
}
