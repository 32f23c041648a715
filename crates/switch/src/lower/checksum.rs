//! Lowering of checksums and their conditions.

use super::builder::{Builder, LowerError, to_index};
use crate::executable::op::{Op, Pc};
use crate::program::ChecksumKind;
use crate::program::expr::{Bool, HeaderExpr};

impl Builder<'_> {
    /// Lowers the checksums to verify (`verify`) or to update; returns the position of the first operation.
    pub fn checksums(&mut self, verify: bool) -> Result<Pc, LowerError> {
        self.context = "the checksums".to_owned();
        let start = self.current_pc()?;
        let program = self.program;
        for (index, checksum) in program.checksums.iter().enumerate() {
            if !(if verify { checksum.verify } else { checksum.update }) {
                continue;
            }
            let skip = self.label()?;
            let is_valid = Bool::Valid(Box::new(HeaderExpr::Header(checksum.target.header)));
            // A checksum of an invalid header is not an error. Only the IPv4 header checksum requires a valid header for
            // an update.
            if verify || checksum.kind == ChecksumKind::Ipv4 {
                self.branch(&is_valid, false, skip)?;
            }
            if let Some(condition) = &checksum.condition {
                self.branch(condition, false, skip)?;
            }
            let checksum = to_index(index)?;
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
