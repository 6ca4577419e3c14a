//! Text that fits a width: tables that drop columns, and items that wrap.

use ratatui::text::{Line, Span};

/// Spaces between two columns.
const GAP: usize = 2;
/// The first column may be cut down to this width before another column is dropped.
const SHORTEST_FIRST: usize = 12;

/// A column of a table. The first column of a table always stays, and is cut if necessary.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    /// The heading of the column.
    pub(super) head: &'static str,
    /// The column with the highest number is dropped first when there is too little room. Columns with 0 always stay.
    pub(super) drop: u8,
}

pub(super) const fn column(head: &'static str, drop: u8) -> Column {
    Column { head, drop }
}

/// A table with the first column aligned left, and numbers aligned right.
pub(super) fn table(
    columns: &[Column],
    head: impl Fn(String) -> Span<'static>,
    rows: &[Vec<Span<'static>>],
    width: usize,
) -> Vec<Line<'static>> {
    let heads: Vec<Span<'static>> = columns.iter().map(|c| head(c.head.to_owned())).collect();
    let all = || std::iter::once(&heads).chain(rows);
    let widths: Vec<usize> = (0..columns.len()).map(|i| all().map(|row| row[i].width()).max().unwrap_or(0)).collect();
    let kept = fitting(columns, &widths, width);
    let rest: usize = kept.iter().skip(1).map(|&i| widths[i] + GAP).sum();
    let first = widths[0].min(width.saturating_sub(rest));
    let line = |row: &Vec<Span<'static>>| {
        let mut spans = vec![padded(cut(&row[0], first), first, false)];
        spans.extend(kept.iter().skip(1).map(|&i| padded(row[i].clone(), widths[i] + GAP, true)));
        Line::from(spans)
    };
    all().map(line).collect()
}

/// The columns that fit into the width, assuming that the first one is cut if necessary.
fn fitting(columns: &[Column], widths: &[usize], width: usize) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..columns.len()).collect();
    loop {
        let rest: usize = kept.iter().skip(1).map(|&i| widths[i] + GAP).sum();
        let last = kept.iter().copied().skip(1).max_by_key(|&i| columns[i].drop).filter(|&i| columns[i].drop > 0);
        match last {
            Some(dropped) if widths[0].min(SHORTEST_FIRST) + rest > width => kept.retain(|&i| i != dropped),
            _ => return kept,
        }
    }
}

fn padded(span: Span<'static>, width: usize, right: bool) -> Span<'static> {
    let space = " ".repeat(width.saturating_sub(span.width()));
    let text = if right { space + &span.content } else { span.content.into_owned() + &space };
    Span::styled(text, span.style)
}

/// The span cut to at most `width` columns. If it is longer, its end is replaced by a mark.
fn cut(span: &Span<'static>, width: usize) -> Span<'static> {
    if span.width() <= width {
        return span.clone();
    }
    let mut text = String::new();
    for c in span.content.chars() {
        if Span::raw(format!("{text}{c}")).width() >= width {
            break;
        }
        text.push(c);
    }
    Span::styled(text + "~", span.style)
}

/// Items one after the other, with as many in a line as fit.
pub(super) fn flow(items: Vec<Span<'static>>, width: usize) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'static>> = Vec::new();
    for item in items {
        let item = cut(&item, width);
        match lines.last_mut() {
            Some(line) if line.width() + GAP + item.width() <= width => {
                line.push_span(Span::raw(" ".repeat(GAP)));
                line.push_span(item);
            }
            _ => lines.push(Line::from(item)),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[Line<'_>]) -> Vec<String> {
        lines.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn columns_go_in_their_order_and_then_the_first_is_cut() {
        let columns = [column("name", 0), column("a", 2), column("b", 0), column("c", 1)];
        let row = ["a long name of it", "1", "22", "333"].map(|t| Span::raw(t.to_owned())).to_vec();
        let at = |width| text(&table(&columns, Span::raw, std::slice::from_ref(&row), width));
        assert_eq!(at(80), ["name               a   b    c", "a long name of it  1  22  333"]);
        assert_eq!(at(27), ["name             a   b    c", "a long name of~  1  22  333"]);
        assert_eq!(at(22), ["name            b    c", "a long name ~  22  333"]);
        assert_eq!(at(16), ["name           b", "a long name~  22"]);
        assert_eq!(at(8), ["name   b", "a l~  22"]);
    }

    #[test]
    fn wide_letters_are_cut_by_their_width() {
        assert_eq!(cut(&Span::raw("模型名字"), 5).content, "模型~");
        assert_eq!(cut(&Span::raw("模型"), 4).content, "模型");
    }

    #[test]
    fn words_wrap() {
        let words = ["one", "two", "three"].map(|t| Span::raw(t.to_owned())).to_vec();
        assert_eq!(text(&flow(words.clone(), 15)), ["one  two  three"]);
        assert_eq!(text(&flow(words, 9)), ["one  two", "three"]);
    }
}
