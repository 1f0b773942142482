//! Values as they are stored, each written and read by one list of its fields.
//!
//! [`stored!`] takes the fields of a struct, or the variants of an enum with their tags, in the order in which they are
//! written, and makes both directions from it: a field cannot be written and forgotten when reading. A tag is never used
//! for another variant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidings_engine::log::LogTotals;
use tidings_model::{DeviceId, LogId, Pattern, Position, ProjectId, RoomId, StreamId, Timestamp, UserId};

use crate::codec::{DecodeError, Reader, Writer};

/// A value that can be part of a stored change.
pub trait Field: Sized {
    /// Writes the value.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads the value back.
    fn take(reader: &mut Reader) -> Result<Self, DecodeError>;

    /// Writes several values, without their number.
    fn put_each(values: &[Self], out: &mut Vec<u8>) {
        values.iter().for_each(|value| value.put(out));
    }

    /// Reads so many values back.
    fn take_each(count: usize, reader: &mut Reader) -> Result<Vec<Self>, DecodeError> {
        (0..count).map(|_| Self::take(reader)).collect()
    }

    /// Reads a value that must be all there is.
    fn take_whole(mut reader: Reader) -> Result<Self, DecodeError> {
        let value = Self::take(&mut reader)?;
        if reader.is_empty() { Ok(value) } else { Err(DecodeError) }
    }
}

/// Implements [`Field`] for structs and enums from their fields, in the order in which they are written.
macro_rules! stored {
    () => {};
    (struct $name:ident { $($field:ident),* $(,)? } $($rest:tt)*) => {
        impl $crate::field::Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                let Self { $($field),* } = self;
                $($crate::field::Field::put($field, out);)*
            }

            fn take(reader: &mut $crate::codec::Reader) -> Result<Self, $crate::codec::DecodeError> {
                Ok(Self { $($field: $crate::field::Field::take(reader)?),* })
            }
        }
        $crate::field::stored! { $($rest)* }
    };
    (enum $name:ident {
        $($tag:literal => $variant:ident $({ $($field:ident),* })? $(($inner:ident))?),* $(,)?
    } $($rest:tt)*) => {
        impl $crate::field::Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(($inner))? => {
                        $crate::codec::Writer::byte(out, $tag);
                        $($($crate::field::Field::put($field, out);)*)?
                        $($crate::field::Field::put($inner, out);)?
                    })*
                }
            }

            fn take(reader: &mut $crate::codec::Reader) -> Result<Self, $crate::codec::DecodeError> {
                Ok(match reader.byte()? {
                    $($tag => {
                        $(let $inner = $crate::field::Field::take(reader)?;)?
                        Self::$variant
                            $({ $($field: $crate::field::Field::take(reader)?),* })?
                            $(($inner))?
                    })*
                    _ => return Err($crate::codec::DecodeError),
                })
            }
        }
        $crate::field::stored! { $($rest)* }
    };
}
pub(crate) use stored;

stored! {
    struct LogTotals { records, bytes }
}

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.byte(u8::from(*self));
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        match reader.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError),
        }
    }
}

impl Field for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.number(*self);
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.number()
    }
}

impl Field for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        out.number(u64::from(*self));
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        Self::try_from(reader.number()?).map_err(|_| DecodeError)
    }
}

impl Field for usize {
    fn put(&self, out: &mut Vec<u8>) {
        out.number(*self as u64);
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.count()
    }
}

/// In whole seconds.
impl Field for Duration {
    fn put(&self, out: &mut Vec<u8>) {
        out.number(self.as_secs());
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.number().map(Self::from_secs)
    }
}

impl Field for Timestamp {
    fn put(&self, out: &mut Vec<u8>) {
        out.number(self.as_millis());
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.time()
    }
}

impl Field for LogId {
    fn put(&self, out: &mut Vec<u8>) {
        out.log(*self);
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.log()
    }
}

impl Field for Position {
    fn put(&self, out: &mut Vec<u8>) {
        out.position(*self);
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.position()
    }

    /// Each by its distance from the one before: a list is in order, so most of them are short.
    fn put_each(positions: &[Self], out: &mut Vec<u8>) {
        let mut last = 0u128;
        for position in positions {
            out.position(Self::new(position.get().wrapping_sub(last)));
            last = position.get();
        }
    }

    fn take_each(count: usize, reader: &mut Reader) -> Result<Vec<Self>, DecodeError> {
        let mut last = 0u128;
        let one = |_| {
            last = last.wrapping_add(reader.position()?.get());
            Ok(Self::new(last))
        };
        (0..count).map(one).collect()
    }
}

impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        out.text(self);
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.text()
    }
}

impl Field for Box<str> {
    fn put(&self, out: &mut Vec<u8>) {
        out.text(self);
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(reader.text()?.into())
    }
}

impl Field for Arc<str> {
    fn put(&self, out: &mut Vec<u8>) {
        out.text(self);
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(reader.text()?.into())
    }
}

/// Values that are a text with rules.
macro_rules! texts {
    ($($name:ty),* $(,)?) => {
        $(impl Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.text(self.as_str());
            }

            fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
                Self::parse(&reader.text()?).map_err(|_| DecodeError)
            }
        })*
    };
}

texts!(ProjectId, StreamId, RoomId, UserId, DeviceId, Pattern);

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        bool::take(reader)?.then(|| T::take(reader)).transpose()
    }
}

impl<T: Field> Field for Box<T> {
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        T::take(reader).map(Self::new)
    }
}

impl<T: Field> Field for Arc<T> {
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        T::take(reader).map(Self::new)
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok((A::take(reader)?, B::take(reader)?))
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        T::put_each(self, out);
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        T::take_each(reader.count()?, reader)
    }
}

impl<K: Field + Ord, V: Field> Field for BTreeMap<K, V> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        (0..reader.count()?).map(|_| Ok((K::take(reader)?, V::take(reader)?))).collect()
    }
}

impl<T: Field + Ord> Field for BTreeSet<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        (0..reader.count()?).map(|_| T::take(reader)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Sample = (Vec<Position>, (BTreeMap<u64, bool>, (Option<u64>, u32)));

    proptest! {
        #[test]
        fn values_are_read_as_they_were_written(
            positions in prop::collection::vec(any::<u128>(), 0..20),
            map in prop::collection::btree_map(any::<u64>(), any::<bool>(), 0..20),
            pair in any::<(Option<u64>, u32)>(),
        ) {
            let value: Sample = (positions.into_iter().map(Position::new).collect(), (map, pair));
            let mut out = Vec::new();
            value.put(&mut out);
            prop_assert_eq!(Sample::take_whole(Reader(out.clone().into())), Ok(value));
            out.push(0);
            prop_assert_eq!(Sample::take_whole(Reader(out.into())), Err(DecodeError));
        }
    }
}
