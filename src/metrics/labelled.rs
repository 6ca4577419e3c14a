//! Enums whose values are the values of a label.

/// Declares such an enum with a name for each value. No value can be missing from `ALL` or be in another's place; this
/// matters because handles are stored in the order of `ALL` and found by `as usize`.
macro_rules! labelled {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $value:ident = $label:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $value,)*
        }

        impl $name {
            /// Every value, in order.
            pub const ALL: [Self; [$($label),*].len()] = [$(Self::$value),*];

            /// The value's name, in metrics and elsewhere.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $label,)*
                }
            }
        }
    };
}

pub(super) use labelled;
