//! Parameters that few sequences set. They take memory only where they are set.

use std::ops::{Deref, DerefMut};

/// Parameters that are all off unless one of them is set.
pub trait Off: PartialEq + Clone + Sized + 'static {
    /// The value with all of them off.
    const OFF: &'static Self;
}

/// A value that is [`Off::OFF`] until it is changed, and takes no memory until then.
#[derive(Debug, Clone)]
pub struct Rare<T: Off>(Option<Box<T>>);

impl<T: Off> Rare<T> {
    /// Bytes that it takes in addition to its own size, without the bytes of its own lists.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |_| size_of::<T>())
    }
}

impl<T: Off> Default for Rare<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Off> From<T> for Rare<T> {
    fn from(value: T) -> Self {
        Self((value != *T::OFF).then(|| Box::new(value)))
    }
}

impl<T: Off> Deref for Rare<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::OFF)
    }
}

impl<T: Off> DerefMut for Rare<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_with(|| Box::new(T::OFF.clone()))
    }
}

impl<T: Off> PartialEq for Rare<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::HistoryParams;
    use super::*;

    #[test]
    fn it_takes_memory_when_it_is_set() {
        let mut rare: Rare<HistoryParams> = HistoryParams::default().into();
        assert_eq!((rare.bytes(), rare == Rare::default()), (0, true));
        rare.dry_base = 2.0;
        assert_eq!((rare.bytes(), rare == Rare::default()), (size_of::<HistoryParams>(), false));
        rare.dry_base = HistoryParams::default().dry_base;
        assert_eq!(rare, Rare::default());
        assert_eq!(size_of::<Rare<HistoryParams>>(), size_of::<usize>());
    }
}
