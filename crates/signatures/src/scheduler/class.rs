//! Operation classes: what is to be done with a message. Each has its own rate on each lane, and batches are of one class.

/// An operation class. The named ones are what the crate can do; a program may add its own below [`Class::COUNT`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Class(u8);

const NAMES: [&str; 10] = [
    "rsa-verify",
    "rsa-sign",
    "ra-verify",
    "ra-sign",
    "p256-verify",
    "p256-sign",
    "ed25519-verify",
    "ed25519-sign",
    "mask-refill",
    "rsa3072-verify",
];

impl Class {
    /// RSA-2048 verification, e = 65537.
    pub const RSA_VERIFY: Self = Self(0);
    /// RSA-2048 signature by CRT: what a signer without masks does.
    pub const RSA_SIGN: Self = Self(1);
    /// Verification of a Rapid Authentication signature.
    pub const RA_VERIFY: Self = Self(2);
    /// Online part of a Rapid Authentication signature: a mask is there.
    pub const RA_SIGN: Self = Self(3);
    /// ECDSA P-256 verification.
    pub const P256_VERIFY: Self = Self(4);
    /// ECDSA P-256 signature.
    pub const P256_SIGN: Self = Self(5);
    /// Ed25519 verification.
    pub const ED25519_VERIFY: Self = Self(6);
    /// Ed25519 signature.
    pub const ED25519_SIGN: Self = Self(7);
    /// Making a Rapid Authentication mask: one RSA signature, nobody waits for it.
    pub const MASK_REFILL: Self = Self(8);
    /// RSA-3072 verification, e = 65537.
    pub const RSA3072_VERIFY: Self = Self(9);

    /// Classes that there can be.
    pub const COUNT: usize = 16;

    /// The class of this number, if it is below [`Class::COUNT`].
    pub const fn new(number: u8) -> Option<Self> {
        if (number as usize) < Self::COUNT {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Its name, if it is one of the crate's.
    pub fn name(self) -> Option<&'static str> {
        NAMES.get(usize::from(self.0)).copied()
    }

    /// All classes.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }
}

/// Something for each class.
#[derive(Clone, Debug)]
pub struct PerClass<T>([T; Class::COUNT]);

impl<T> PerClass<T> {
    /// Made class by class.
    pub fn from_fn(mut make: impl FnMut(Class) -> T) -> Self {
        Self(std::array::from_fn(|number| make(Class(number as u8))))
    }

    /// What belongs to a class.
    pub fn of(&self, class: Class) -> &T {
        #[allow(clippy::indexing_slicing)] // A class is below COUNT: there is no other way to make one.
        &self.0[usize::from(class.0)]
    }

    /// What belongs to a class.
    pub fn of_mut(&mut self, class: Class) -> &mut T {
        #[allow(clippy::indexing_slicing)] // As above.
        &mut self.0[usize::from(class.0)]
    }

    /// All of them, with their classes.
    pub fn iter(&self) -> impl Iterator<Item = (Class, &T)> {
        Class::all().zip(&self.0)
    }
}

impl<T: Default> Default for PerClass<T> {
    fn default() -> Self {
        Self::from_fn(|_| T::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names() {
        assert_eq!(Class::new(15).map(Class::number), Some(15));
        assert_eq!(Class::new(16), None);
        assert_eq!(Class::RSA3072_VERIFY.name(), Some("rsa3072-verify"));
        assert_eq!(Class::new(10).and_then(Class::name), None);
        assert_eq!(Class::all().count(), Class::COUNT);
        let mut per = PerClass::from_fn(Class::number);
        *per.of_mut(Class::RA_SIGN) = 99;
        assert_eq!((*per.of(Class::RA_SIGN), *per.of(Class::RA_VERIFY)), (99, 2));
    }
}
