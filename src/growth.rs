//! How lists grow that stay in memory with a sequence: by a quarter instead of doubling, because memory counts there.

/// What a full list grows by beside a quarter of it.
const LEAST: usize = 16;

/// By how many entries a full list of `len` grows: enough that growing costs next to nothing per entry, and little
/// enough that no more than a quarter of a long list lies idle.
fn spare(len: usize) -> usize {
    len / 4 + LEAST
}

/// Makes room for one more entry, if there is none.
pub(crate) fn make_room<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact(spare(list.len()));
    }
}

/// Appends an entry.
pub(crate) fn push<T>(list: &mut Vec<T>, entry: T) {
    make_room(list);
    list.push(entry);
}

/// The largest capacity that a list may have once it has `len` entries.
pub(crate) fn after_growth(capacity: usize, len: usize) -> usize {
    capacity.max(len + spare(len))
}

/// The capacity that a list has once entries were appended one by one until it has `len`.
pub(crate) fn after_pushes(mut capacity: usize, len: usize) -> usize {
    while capacity < len {
        capacity += spare(capacity);
    }
    capacity
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_never_has_more_room_than_was_foretold() {
        let (mut list, mut inserted) = (Vec::new(), Vec::new());
        for len in 1..2000 {
            let most = [after_growth(list.capacity(), len), after_growth(inserted.capacity(), len)];
            let exactly = after_pushes(list.capacity(), len);
            push(&mut list, len);
            assert_eq!(list.capacity(), exactly, "{len}");
            make_room(&mut inserted);
            inserted.insert(0, len);
            assert!(list.capacity() <= most[0] && inserted.capacity() <= most[1], "{len}");
            assert!(list.capacity() - len <= len / 4 + LEAST, "{len}");
        }
    }
}
