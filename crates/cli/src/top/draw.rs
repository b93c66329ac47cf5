//! Draws the application on a screen of any size, and as plain text.

use super::app::{App, Open};
use super::sample::{Device, QpRates, Sample};
use super::tables::{self, Cell, Column, Row, Tab, Tone, tone_of};
use crate::counters::{printable, uptime};
use crate::sizes::short;
use ferroce_nic::{HistoryReport, QpReport};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Widget};

/// Between two columns.
const GAP: u16 = 2;

const HELP: [&str; 12] = [
    "↑ ↓ PgUp PgDn Home End  move",
    "Enter  open a queue pair, or show those of a process",
    "Esc    back, then clear the filter",
    "Tab ← → 1-6  other tables",
    "s S    sort by the next, the previous column",
    "r      reverse the order",
    "/      filter: rows that contain the text",
    "Space  pause",
    "q      quit",
    "",
    "Rates are per second: k 1000, M 1000000.",
    "direct: operations in the memory of a local peer, without a packet.",
];

/// Draws one frame.
pub(super) fn frame(app: &mut App, frame: &mut Frame<'_>) {
    screen(app, frame.area(), frame.buffer_mut());
}

fn screen(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let body = area.height.saturating_sub(4);
    line(buffer, area, 0, headline(&app.sample, app.is_paused));
    line(buffer, area, 1, tabs(app, area.width));
    let rest = Rect { y: area.y + 2.min(area.height), height: area.height.saturating_sub(3), ..area };
    app.page = usize::from(body.max(1));
    match &mut app.open {
        Some(open) => detail(open, app.colours, rest, buffer),
        None => {
            app.scroll_to_selected();
            table(app, rest, buffer);
        }
    }
    if area.height > 3 {
        line(buffer, area, area.height - 1, footer(app));
    }
    if app.shows_help {
        help(area, buffer);
    }
}

/// Every table as text, one after the other, with all rows.
pub(super) fn text(app: &mut App, width: u16) -> String {
    let mut parts = vec![plain(&headline(&app.sample, false))];
    parts.extend(app.sample.unanswered.iter().map(|why| format!("{}.", printable(why))));
    if app.sample.devices.is_empty() && app.sample.unanswered.is_empty() {
        parts.push(empty(app));
    }
    for tab in Tab::ALL {
        app.show(tab);
        if app.rows.is_empty() {
            continue;
        }
        let columns = Layout::of(app, &app.rows, width);
        let mut lines = vec![tab.title().to_owned(), plain(&columns.heading(app))];
        lines.extend(app.rows.iter().map(|row| plain(&columns.row(row, false))));
        lines.extend(left_out(&app.sample, tab));
        parts.push(lines.join("\n"));
    }
    parts.join("\n\n")
}

fn plain(line: &Line<'_>) -> String {
    let text: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
    text.trim_end().to_owned()
}

fn line(buffer: &mut Buffer, area: Rect, y: u16, line: Line<'_>) {
    if y < area.height {
        buffer.set_line(area.x, area.y + y, &line, area.width);
    }
}

fn headline(sample: &Sample, is_paused: bool) -> Line<'static> {
    let devices = &sample.devices;
    let qps: u64 = devices.iter().map(|device| device.qp_count()).fold(0, u64::saturating_add);
    let sum = |rate: fn(&super::sample::DeviceRates) -> f64| -> f64 {
        devices.iter().map(|d| rate(&d.rates)).sum()
    };
    let (tx, rx, drops) = (sum(|r| r.tx_bytes), sum(|r| r.rx_bytes), sum(|r| r.drops));
    let mut pids: Vec<u32> = devices.iter().map(|device| device.snapshot.pid).collect();
    pids.dedup();
    let pause = if is_paused { " PAUSED" } else { "" };
    let counts = format!(
        "{}, {}, tx {}B/s, rx {}B/s, {} drops/s",
        counted(pids.len() as u64, "process", "processes"),
        counted(qps, "queue pair", "queue pairs"),
        short(tx),
        short(rx),
        short(drops),
    );
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Line::from(vec![
        Span::styled(format!("ferroce top{pause}  "), bold),
        Span::raw(format!("{counts}  {}", sample.at)),
    ])
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// The titles of the tabs; on a narrow screen only their numbers and the title of the present one.
fn tabs(app: &App, width: u16) -> Line<'static> {
    let all: usize = Tab::ALL.iter().map(|tab| tab.title().len() + 4).sum();
    let is_narrow = all > usize::from(width);
    let spans = Tab::ALL.iter().enumerate().map(|(at, tab)| {
        let is_shown = *tab == app.tab;
        let text = match is_narrow && !is_shown {
            true => format!(" {} ", at + 1),
            false => format!(" {} {} ", at + 1, tab.title()),
        };
        Span::styled(
            text,
            if is_shown { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() },
        )
    });
    Line::from(spans.collect::<Vec<_>>())
}

fn footer(app: &App) -> Line<'static> {
    let mut text = match (app.edits_filter, &app.open) {
        (true, _) => return Line::raw(format!("filter: {}_", printable(&app.filter))),
        (false, Some(_)) => "Esc back  ↑↓ scroll  q quit".to_owned(),
        (false, None) => "q quit  ? help  Enter open  s sort  / filter".to_owned(),
    };
    let mut notes = Vec::new();
    if let Some(pid) = app.only_pid {
        notes.push(format!("only process {pid}"));
    }
    if !app.filter.is_empty() {
        notes.push(format!("{} of {} match {:?}", app.rows.len(), app.unfiltered, printable(&app.filter)));
    }
    notes.extend(
        left_out(&app.sample, app.tab).into_iter().map(|note| note.trim_start_matches("… ").to_owned()),
    );
    notes.extend(app.sample.unanswered.first().map(|why| printable(why)));
    if !notes.is_empty() {
        text = format!("{}  ({text})", notes.join(", "));
    }
    Line::raw(text)
}

/// What a tab does not list.
fn left_out(sample: &Sample, tab: Tab) -> Vec<String> {
    let sum = |count: fn(&ferroce_nic::inspect::Snapshot) -> u64| -> u64 {
        sample.devices.iter().map(|device| count(&device.snapshot)).fold(0, u64::saturating_add)
    };
    let (count, what) = match tab {
        Tab::Qps | Tab::Cqs => (sum(|s| s.queue_pairs_left_out), "more queue pairs did not answer in time"),
        Tab::Memory => (sum(|s| s.objects.regions_left_out), "smaller regions are not listed"),
        _ => (0, ""),
    };
    if count > 0 { vec![format!("… {count} {what}")] } else { Vec::new() }
}

/// Which columns fit, and how wide they are.
struct Layout {
    columns: Vec<(usize, &'static Column, u16)>,
    colours: bool,
}

impl Layout {
    /// For the rows that will be shown.
    fn of(app: &App, rows: &[Row], width: u16) -> Layout {
        let mut left = width;
        let mut columns = Vec::new();
        for (at, column) in app.tab.columns().iter().enumerate() {
            let cells = rows.iter().map(|row| row.cells.get(at).map_or(0, |cell| width_of(&cell.text)));
            let sign = u16::from(app.order().column == at);
            let wanted = cells.max().unwrap_or(0).max(width_of(column.title) + sign).max(column.width);
            let gap = if at == 0 { 0 } else { GAP };
            // The last column of words takes what is left.
            let is_last = at + 1 == app.tab.columns().len() && !column.is_number;
            let given = if at == 0 || is_last && left > gap + 8 {
                wanted.min(left.saturating_sub(gap))
            } else {
                wanted
            };
            let Some(rest) = left.checked_sub(gap + given) else { break };
            left = rest;
            columns.push((at, column, given));
        }
        Layout { columns, colours: app.colours }
    }

    fn heading(&self, app: &App) -> Line<'static> {
        let order = app.order();
        let cell = |at: usize, column: &Column| {
            let sign = if order.column != at {
                ""
            } else if order.descends {
                "▼"
            } else {
                "▲"
            };
            format!("{}{sign}", column.title)
        };
        let style = Style::new().add_modifier(Modifier::BOLD);
        let spans = self.columns.iter().map(|(at, column, width)| {
            Span::styled(self.padded(*at, &cell(*at, column), column.is_number, *width), style)
        });
        Line::from(spans.collect::<Vec<_>>())
    }

    fn row(&self, row: &Row, is_selected: bool) -> Line<'static> {
        let spans = self.columns.iter().filter_map(|(at, column, width)| {
            let cell: &Cell = row.cells.get(*at)?;
            let style = if is_selected {
                Style::new().add_modifier(Modifier::REVERSED)
            } else {
                style_of(cell.tone, self.colours)
            };
            Some(Span::styled(self.padded(*at, &cell.text, column.is_number, *width), style))
        });
        Line::from(spans.collect::<Vec<_>>())
    }

    fn padded(&self, at: usize, text: &str, to_the_right: bool, width: u16) -> String {
        let gap = " ".repeat(usize::from(if at == 0 { 0 } else { GAP }));
        let text = shortened(text, width);
        let padding = " ".repeat(usize::from(width.saturating_sub(width_of(&text))));
        if to_the_right { format!("{gap}{padding}{text}") } else { format!("{gap}{text}{padding}") }
    }
}

/// Columns that a text takes on the screen.
fn width_of(text: &str) -> u16 {
    Span::raw(text).width().min(usize::from(u16::MAX)) as u16
}

/// The text in at most `width` columns; an ellipsis shows that it was longer.
fn shortened(text: &str, width: u16) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        if width_of(&short) + width_of(c.encode_utf8(&mut [0; 4])) >= width {
            break;
        }
        short.push(c);
    }
    short + "…"
}

fn style_of(tone: Tone, colours: bool) -> Style {
    match (tone, colours) {
        (Tone::Plain, _) => Style::new(),
        (Tone::Good, true) => Style::new().fg(Color::Green),
        (Tone::Warning, true) => Style::new().fg(Color::Yellow),
        (Tone::Bad, true) => Style::new().fg(Color::Red),
        (Tone::Bad, false) => Style::new().add_modifier(Modifier::BOLD),
        (_, false) => Style::new(),
    }
}

fn table(app: &App, area: Rect, buffer: &mut Buffer) {
    if app.rows.is_empty() {
        return line(buffer, area, 0, Line::raw(empty(app)));
    }
    let end = app.rows.len().min(app.top + app.page);
    let shown = &app.rows[app.top..end];
    let layout = Layout::of(app, shown, area.width);
    line(buffer, area, 0, layout.heading(app));
    for (y, row) in shown.iter().enumerate() {
        line(buffer, area, y as u16 + 1, layout.row(row, app.top + y == app.selected));
    }
}

fn empty(app: &App) -> String {
    match app.unfiltered {
        0 => app.tab.nothing(&app.sample).to_owned(),
        _ => "No row matches the filter; Esc clears it.".into(),
    }
}

/// An open queue pair: its numbers, then its events, the newest first.
fn detail(open: &mut Open, colours: bool, area: Rect, buffer: &mut Buffer) {
    let id = open.id;
    let Some((device, qp, rates)) = open.last.find(id) else {
        return line(buffer, area, 0, Line::raw("This queue pair is gone."));
    };
    let snapshot = &device.snapshot;
    let title = format!(
        "QP {:#08x} of process {} ({}), open for {}",
        qp.qpn,
        id.pid,
        printable(&snapshot.command),
        uptime(snapshot.uptime_ms)
    );
    let mut lines = vec![Line::styled(title, Style::new().add_modifier(Modifier::BOLD))];
    if !open.is_there {
        let gone = format!("It is gone; this is its last report, at {}.", open.last.at);
        lines.push(Line::styled(gone, style_of(Tone::Bad, colours)));
    }
    lines.extend(facts(device, qp, rates, area.width, colours));
    let none = Vec::new();
    let events = snapshot.objects.history.as_ref().unwrap_or(&none);
    let title = match (&snapshot.objects.history, snapshot.now_ns) {
        (None, 0) => "The version of its process stores no events.".to_owned(),
        (None, _) => "Requesting its events …".to_owned(),
        (Some(_), _) => {
            format!("Last {}, the newest first:", counted(events.len() as u64, "event", "events"))
        }
    };
    lines.push(Line::styled(title, Style::new().add_modifier(Modifier::BOLD)));
    lines.extend(events.iter().rev().map(|event| event_line(event, snapshot.now_ns, area.width)));
    open.scroll = open.scroll.min(lines.len().saturating_sub(usize::from(area.height)));
    for (y, content) in lines.into_iter().skip(open.scroll).take(usize::from(area.height)).enumerate() {
        line(buffer, area, y as u16, content);
    }
}

/// The facts of a queue pair, in as many columns as fit.
fn facts(device: &Device, qp: &QpReport, rates: &QpRates, width: u16, colours: bool) -> Vec<Line<'static>> {
    let facts: Vec<(&str, String, Tone)> = tables::facts(device, qp, rates)
        .into_iter()
        .map(|(name, value)| (name, value, if name == "state" { tone_of(&qp.state) } else { Tone::Plain }))
        .collect();
    let widest = facts.iter().map(|(_, value, _)| width_of(value)).max().unwrap_or(0);
    let each = 18 + widest + GAP;
    let columns = usize::from((width / each).max(1));
    let lines = facts.len().div_ceil(columns);
    let cell = |at: usize| {
        facts.get(at).map(|(name, value, tone)| {
            let padding = " ".repeat(usize::from((widest + GAP).saturating_sub(width_of(value))));
            [
                Span::raw(format!("{name:<17} ")),
                Span::styled(format!("{value}{padding}"), style_of(*tone, colours)),
            ]
        })
    };
    (0..lines)
        .map(|y| Line::from((0..columns).filter_map(|x| cell(x * lines + y)).flatten().collect::<Vec<_>>()))
        .collect()
}

fn event_line(event: &HistoryReport, now_ns: u64, width: u16) -> Line<'static> {
    let ago = now_ns.saturating_sub(event.at_ns) as f64 / 1e9;
    let count = if event.count == 1 { String::new() } else { format!(" ×{}", event.count) };
    Line::raw(shortened(&format!("{ago:>10.3} s ago  {}{count}", printable(&event.what)), width))
}

fn help(area: Rect, buffer: &mut Buffer) {
    let width = HELP.iter().map(|text| width_of(text)).max().unwrap_or(0).min(area.width);
    let height = (HELP.len() as u16).min(area.height);
    let (x, y) = (area.x + (area.width - width) / 2, area.y + (area.height - height) / 2);
    let centre = Rect { x, y, width, height };
    Clear.render(centre, buffer);
    let style = Style::new().add_modifier(Modifier::REVERSED);
    Paragraph::new(HELP.map(Line::raw).to_vec()).style(style).render(centre, buffer);
}
