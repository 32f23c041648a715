//! Operation classes: the kinds of work on a message. Each class has its own rate on each lane, and a batch has one class.

/// An operation class. The named classes are those of this crate; a program may add its own below [`Class::COUNT`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Class(u8);

macro_rules! classes {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $text:literal;)+) => {
        impl Class {
            $($(#[doc = $doc])+ pub const $name: Self = Self($number);)+

            /// The name, for a class of this crate.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($text),)+
                    _ => None,
                }
            }
        }
    };
}

classes! {
    /// RSA-2048 verification, e = 65537.
    RSA_VERIFY = 0, "rsa-verify";
    /// RSA signature by CRT, of 2,048 or 3,072 bits: signing without a mask.
    RSA_SIGN = 1, "rsa-sign";
    /// Verification of a Rapid Authentication signature over 2,048 bits.
    RA_VERIFY = 2, "ra-verify";
    /// Online part of a Rapid Authentication signature, with a mask.
    RA_SIGN = 3, "ra-sign";
    /// ECDSA P-256 verification.
    P256_VERIFY = 4, "p256-verify";
    /// ECDSA P-256 signature.
    P256_SIGN = 5, "p256-sign";
    /// Ed25519 verification.
    ED25519_VERIFY = 6, "ed25519-verify";
    /// Ed25519 signature.
    ED25519_SIGN = 7, "ed25519-sign";
    /// Making a Rapid Authentication mask: one RSA signature, without a waiting message.
    MASK_REFILL = 8, "mask-refill";
    /// RSA-3072 verification, e = 65537.
    RSA3072_VERIFY = 9, "rsa3072-verify";
    /// Verification of a Rapid Authentication signature over 3,072 bits.
    RA3072_VERIFY = 10, "ra3072-verify";
    /// [`Class::RSA_VERIFY`] for a key without a place on an accelerator.
    RSA_VERIFY_UNPLACED = 11, "rsa-verify-unplaced";
    /// [`Class::RA_VERIFY`] for a key without a place on an accelerator.
    RA_VERIFY_UNPLACED = 12, "ra-verify-unplaced";
    /// [`Class::RSA3072_VERIFY`] for a key without a place on an accelerator.
    RSA3072_VERIFY_UNPLACED = 13, "rsa3072-verify-unplaced";
    /// [`Class::RA3072_VERIFY`] for a key without a place on an accelerator.
    RA3072_VERIFY_UNPLACED = 14, "ra3072-verify-unplaced";
    /// [`Class::P256_VERIFY`] for a key without a place on an accelerator.
    P256_VERIFY_UNPLACED = 15, "p256-verify-unplaced";
}

impl Class {
    /// Maximum number of classes.
    pub const COUNT: usize = 20;

    /// The class of this number, if it is below [`Class::COUNT`].
    pub const fn new(number: u8) -> Option<Self> {
        if (number as usize) < Self::COUNT {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The class of the same operation for a key without a place on an accelerator; only CPU lanes support this class.
    /// `None` if keys need no place.
    pub const fn unplaced(self) -> Option<Self> {
        match self {
            Self::RSA_VERIFY => Some(Self::RSA_VERIFY_UNPLACED),
            Self::RA_VERIFY => Some(Self::RA_VERIFY_UNPLACED),
            Self::RSA3072_VERIFY => Some(Self::RSA3072_VERIFY_UNPLACED),
            Self::RA3072_VERIFY => Some(Self::RA3072_VERIFY_UNPLACED),
            Self::P256_VERIFY => Some(Self::P256_VERIFY_UNPLACED),
            _ => None,
        }
    }

    /// The number of the class.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// All classes.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }
}

/// A value for each class.
#[derive(Clone, Debug)]
pub struct PerClass<T>([T; Class::COUNT]);

impl<T> PerClass<T> {
    /// Makes the values class by class.
    pub fn from_fn(mut make: impl FnMut(Class) -> T) -> Self {
        Self(std::array::from_fn(|number| make(Class(number as u8))))
    }

    /// The value of a class.
    pub fn of(&self, class: Class) -> &T {
        #[allow(clippy::indexing_slicing)] // A class is below COUNT by construction.
        &self.0[usize::from(class.0)]
    }

    /// The value of a class, for a change.
    pub fn of_mut(&mut self, class: Class) -> &mut T {
        #[allow(clippy::indexing_slicing)] // As above.
        &mut self.0[usize::from(class.0)]
    }

    /// All values, with their classes.
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
        assert_eq!(Class::new(19).map(Class::number), Some(19));
        assert_eq!(Class::new(20), None);
        assert_eq!(Class::RSA3072_VERIFY.name(), Some("rsa3072-verify"));
        assert_eq!(Class::new(19).and_then(Class::name), None);
        assert_eq!(Class::all().count(), Class::COUNT);
        let mut values = PerClass::from_fn(Class::number);
        *values.of_mut(Class::RA_SIGN) = 99;
        assert_eq!(
            (*values.of(Class::RA_SIGN), *values.of(Class::RA_VERIFY)),
            (99, 2)
        );
    }
}
