//! Resource usage of kernels, read from their machine code, an ELF file: the section `.nv.info` has registers
//! (EIATTR_REGCOUNT) and local memory (EIATTR_FRAME_SIZE) of each function; the size of `.nv.shared.NAME` is the
//! shared memory. No GPU is required.

use super::kernels::Resources;

const SECTION_ENTRY: usize = 64;
const SYMBOL_ENTRY: usize = 24;
/// Attributes of this format have a 16-bit length and a value; in other formats the 16 bits are the value.
const SIZED: u8 = 4;
const FRAME_SIZE: u8 = 0x11;
const REGISTERS: u8 = 0x2f;

/// A parsed cubin.
pub struct Cubin<'a> {
    sections: Vec<Section<'a>>,
}

struct Section<'a> {
    name: &'a str,
    link: usize,
    size: u64,
    /// Empty for sections without content in the file.
    bytes: &'a [u8],
}

impl<'a> Cubin<'a> {
    /// Parses the sections. `None` if the bytes are not a 64-bit ELF file.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        if !bytes.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let table = usize::try_from(u64_at(bytes, 0x28)?).ok()?;
        let count = usize::from(u16_at(bytes, 0x3c)?);
        let names_index = usize::from(u16_at(bytes, 0x3e)?);
        let entry = |index: usize| bytes.get(table.checked_add(index * SECTION_ENTRY)?..);
        let body = |entry: &[u8]| {
            const NOT_IN_FILE: u32 = 8;
            if u32_at(entry, 4)? == NOT_IN_FILE {
                return Some(&[][..]);
            }
            let first = usize::try_from(u64_at(entry, 24)?).ok()?;
            bytes.get(first..first.checked_add(usize::try_from(u64_at(entry, 32)?).ok()?)?)
        };
        let names = body(entry(names_index)?)?;
        let sections = (0..count)
            .map(|index| {
                let entry = entry(index)?;
                Some(Section {
                    name: text_at(names, u32_at(entry, 0)?)?,
                    link: usize::try_from(u32_at(entry, 40)?).ok()?,
                    size: u64_at(entry, 32)?,
                    bytes: body(entry)?,
                })
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Self { sections })
    }

    /// Resource usage of a kernel. `None` if the kernel is missing.
    #[must_use]
    pub fn resources(&self, kernel: &str) -> Option<Resources> {
        let index = self.symbol(kernel)?;
        let shared = format!(".nv.shared.{kernel}");
        let shared_bytes = self
            .sections
            .iter()
            .find(|section| section.name == shared)
            .map_or(0, |section| section.size);
        Some(Resources {
            registers: self.info(REGISTERS, index)?,
            local_bytes: self.info(FRAME_SIZE, index)?,
            shared_bytes: u32::try_from(shared_bytes).ok()?,
        })
    }

    fn section(&self, name: &str) -> Option<&Section<'a>> {
        self.sections.iter().find(|section| section.name == name)
    }

    fn symbol(&self, name: &str) -> Option<u32> {
        let table = self.section(".symtab")?;
        let names = self.sections.get(table.link)?.bytes;
        let index = table
            .bytes
            .chunks_exact(SYMBOL_ENTRY)
            .position(|entry| u32_at(entry, 0).and_then(|offset| text_at(names, offset)) == Some(name))?;
        u32::try_from(index).ok()
    }

    /// The value of an attribute of a symbol; an entry has two words, symbol and value.
    fn info(&self, attribute: u8, symbol: u32) -> Option<u32> {
        let mut rest = self.section(".nv.info")?.bytes;
        while let Some((head, tail)) = rest.split_at_checked(4) {
            let [format, kind, ..] = *head else {
                return None;
            };
            let length = match format {
                SIZED => usize::from(u16_at(head, 2)?),
                _ => 0,
            };
            let (value, next) = tail.split_at_checked(length)?;
            if kind == attribute && u32_at(value, 0) == Some(symbol) {
                return u32_at(value, 4);
            }
            rest = next;
        }
        None
    }
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn text_at(bytes: &[u8], offset: u32) -> Option<&str> {
    let rest = bytes.get(usize::try_from(offset).ok()?..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(rest.get(..end)?).ok()
}
