//! Checksums: under which conditions they are verified and updated.

use super::builder::{Builder, LowerError, number};
use crate::exec::op::{Op, Pc};
use crate::program::ChecksumKind;
use crate::program::expr::{Bool, HeaderExpr};

impl Builder<'_> {
    /// Lowers the checksums that the parser verifies, or those that the deparser updates.
    pub fn checksums(&mut self, verify: bool) -> Result<Pc, LowerError> {
        self.context = "the checksums".to_owned();
        let start = self.here()?;
        let program = self.program;
        for (index, checksum) in program.checksums.iter().enumerate() {
            if !(if verify { checksum.verify } else { checksum.update }) {
                continue;
            }
            let skip = self.label()?;
            let there = Bool::Valid(Box::new(HeaderExpr::Header(checksum.target.header)));
            // One whose header is not there is not wrong; only the one over a whole IPv4 header needs it to be
            // updated.
            if verify || checksum.kind == ChecksumKind::Ipv4 {
                self.branch(&there, false, skip)?;
            }
            if let Some(condition) = &checksum.condition {
                self.branch(condition, false, skip)?;
            }
            let checksum = number(index)?;
            self.emit(if verify {
                Op::Verify { checksum }
            } else {
                Op::Update { checksum }
            });
            self.bind(skip)?;
        }
        self.emit(Op::End);
        Ok(start)
    }
}
