//! The live view.

use super::view::{Section, Theme, header, sections};
use super::{Figures, Scrape, Source, TopError};
use crate::output::counted;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::time::Duration;
use tokio::sync::mpsc;

/// Number of scrapes that are kept. Speculation is counted over all of them.
const LOOKS: usize = 30;
/// Number of rates that are kept for the sparkline.
const RATES: usize = 240;
/// From this width on there are two columns.
const TWO_COLUMNS: u16 = 110;
const GUTTER: u16 = 3;
/// Number of lines that the page keys scroll by.
const PAGE: u16 = 10;
const KEYS: &str = "q quit   arrows scroll";

/// The state of the screen.
#[derive(Debug)]
pub struct Screen {
    address: String,
    theme: Theme,
    looks: VecDeque<Scrape>,
    rates: VecDeque<f64>,
    figures: Option<Figures>,
    /// Why the last scrape failed, if it did.
    failed: Option<String>,
    scroll: u16,
}

impl Screen {
    /// A screen before the first scrape.
    #[must_use]
    pub fn new(address: &str, theme: Theme) -> Self {
        let (looks, rates) = (VecDeque::new(), VecDeque::new());
        Self { address: address.to_owned(), theme, looks, rates, figures: None, failed: None, scroll: 0 }
    }

    /// Takes another scrape, or the reason why it failed. After a failure the last figures stay on the screen.
    pub fn look(&mut self, seen: Result<Scrape, String>) {
        let now = match seen {
            Ok(now) => now,
            Err(reason) => {
                self.failed = Some(reason);
                return;
            }
        };
        self.failed = None;
        if let (Some(before), Some(first)) = (self.looks.back(), self.looks.front()) {
            let figures = Figures::between(&self.address, before, &now, first);
            if figures.restarted {
                // The earlier scrapes belong to another process.
                self.looks.clear();
            }
            push(&mut self.rates, figures.tokens.per_second, RATES);
            self.figures = Some(figures);
        }
        push(&mut self.looks, now, LOOKS);
    }

    fn scroll(&mut self, lines: i32) {
        self.scroll = self.scroll.saturating_add_signed(lines.clamp(-1000, 1000) as i16);
    }
}

fn push<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(item);
}

/// Draws the screen at any size.
pub fn draw(screen: &mut Screen, frame: &mut Frame<'_>) {
    let area = frame.area();
    let Some(figures) = &screen.figures else {
        let reading = Line::from(format!("Reading http://{}/metrics ...", screen.address));
        frame.render_widget(Paragraph::new(no_answer(screen).unwrap_or(reading)), area);
        return;
    };
    let rates: Vec<f64> = screen.rates.iter().copied().collect();
    let head = header(figures, screen.failed.is_none(), screen.theme, area.width.into());
    let head_height = u16::try_from(head.len()).unwrap_or(u16::MAX);
    let rows = [Constraint::Length(head_height), Constraint::Min(0), Constraint::Length(1)];
    let [top, body, foot] = Layout::vertical(rows).areas(area);
    let wide = area.width >= TWO_COLUMNS;
    let columns: Vec<Rect> = match wide {
        true => Layout::horizontal([Constraint::Fill(1); 2]).spacing(GUTTER).split(body).to_vec(),
        false => vec![body],
    };
    let width = columns.iter().map(|column| column.width).min().unwrap_or_default().into();
    let [left, right] = sections(figures, &rates, screen.theme, width);
    let parts = if wide { vec![left, right] } else { vec![left.into_iter().chain(right).collect()] };
    let texts: Vec<Vec<Line<'static>>> = parts.into_iter().map(stacked).collect();
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    let hidden = u16::try_from(longest).unwrap_or(u16::MAX).saturating_sub(body.height);
    screen.scroll = screen.scroll.min(hidden);
    frame.render_widget(Paragraph::new(head), top);
    for (text, column) in texts.into_iter().zip(columns) {
        frame.render_widget(Paragraph::new(text).scroll((screen.scroll, 0)), column);
    }
    frame.render_widget(foot_line(screen, hidden), foot);
}

fn stacked(sections: Vec<Section>) -> Vec<Line<'static>> {
    let lines = |section: Section| [vec![Line::default(), section.title], section.lines].concat();
    sections.into_iter().flat_map(lines).collect()
}

/// Why the last scrape failed, if it did.
fn no_answer(screen: &Screen) -> Option<Line<'static>> {
    let text = format!("NO ANSWER, trying again: {}", screen.failed.as_ref()?);
    Some(Line::from(Span::styled(text, Style::new().add_modifier(Modifier::REVERSED))))
}

fn foot_line(screen: &Screen, hidden: u16) -> Line<'static> {
    if let Some(line) = no_answer(screen) {
        return line;
    }
    let below = hidden - screen.scroll;
    let more = if below > 0 { format!("   {} below", counted(below.into(), "more line")) } else { String::new() };
    Line::from(Span::styled(format!("{KEYS}{more}"), Style::new().add_modifier(Modifier::DIM)))
}

/// Shows `source` until the user or a signal ends it.
pub(super) async fn live(source: Source, interval: Duration) -> Result<(), TopError> {
    for (stream, is_terminal) in [("output", io::stdout().is_terminal()), ("input", io::stdin().is_terminal())] {
        if !is_terminal {
            return Err(TopError::NoTerminal(stream));
        }
    }
    let mut screen = Screen::new(&source.authority, Theme::detect());
    // If the address is wrong, the message goes to the ordinary terminal, before anything is drawn.
    screen.look(Ok(source.scrape().await?));
    let stop = crate::shutdown::on_signal(|| ())?;
    let mut terminal = ratatui::try_init()?;
    let _restore = Restore;
    let (mut looks, mut keys) = (watch(source, interval), read_keys()?);
    loop {
        terminal.draw(|frame| draw(&mut screen, frame))?;
        tokio::select! {
            Some(seen) = looks.recv() => screen.look(seen),
            Some(key) = keys.recv() => match key {
                Key::Quit => return Ok(()),
                Key::Scroll(lines) => screen.scroll(lines),
                Key::Redraw => {}
            },
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// Restores the terminal when it is dropped. After a panic, ratatui's own hook does that.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Scrapes periodically in its own task, because keys must work while a server does not answer.
fn watch(source: Source, interval: Duration) -> mpsc::Receiver<Result<Scrape, String>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let seen = source.scrape().await.map_err(|error| first_line(&error));
            if sender.send(seen).await.is_err() {
                return;
            }
        }
    });
    receiver
}

fn first_line(error: &TopError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

enum Key {
    Quit,
    Scroll(i32),
    Redraw,
}

/// Reads keys on its own thread, because reading them blocks. The thread ends with the process.
fn read_keys() -> io::Result<mpsc::Receiver<Key>> {
    let (sender, receiver) = mpsc::channel(8);
    let read = move || {
        while let Ok(event) = event::read() {
            if key(&event).is_some_and(|key| sender.blocking_send(key).is_err()) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("croupier-keys".to_owned()).spawn(read)?;
    Ok(receiver)
}

fn key(event: &Event) -> Option<Key> {
    let key = match event {
        Event::Resize(..) => return Some(Key::Redraw),
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Scroll(-1)),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Scroll(1)),
        KeyCode::PageUp => Some(Key::Scroll(-i32::from(PAGE))),
        KeyCode::PageDown | KeyCode::Char(' ') => Some(Key::Scroll(PAGE.into())),
        KeyCode::Home => Some(Key::Scroll(-1000)),
        _ => None,
    }
}
