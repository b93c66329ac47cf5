//! What the screen shows: the tab, the selected row, the order, the filter, an open queue pair; and what each key does.

use super::sample::{QpId, Sample};
use super::tables::{Order, Row, RowId, Tab};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::HashMap;

/// Longest filter.
const FILTER_LEN: usize = 64;

/// What the terminal loop must do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    /// Take another sample immediately: a queue pair was opened.
    Refresh,
    Quit,
}

/// An open queue pair and its last sample.
pub(super) struct Open {
    pub(super) id: QpId,
    /// The last sample that had it.
    pub(super) last: Sample,
    /// The present sample has it.
    pub(super) is_there: bool,
    /// First line that is shown.
    pub(super) scroll: usize,
}

pub(super) struct App {
    pub(super) tab: Tab,
    pub(super) sample: Sample,
    /// The rows of the tab that pass the filter, in order.
    pub(super) rows: Vec<Row>,
    /// Rows before the filter.
    pub(super) unfiltered: usize,
    pub(super) selected: usize,
    /// First row on the screen.
    pub(super) top: usize,
    /// Rows that fit on the screen when it was last drawn.
    pub(super) page: usize,
    pub(super) filter: String,
    pub(super) edits_filter: bool,
    /// Only rows of this process.
    pub(super) only_pid: Option<u32>,
    pub(super) open: Option<Open>,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    pub(super) colours: bool,
    orders: HashMap<Tab, Order>,
    /// What is selected: it stays so when rows move.
    anchor: Option<RowId>,
}

impl App {
    pub(super) fn new(filter: String, colours: bool) -> App {
        App {
            tab: Tab::Qps,
            sample: Sample::default(),
            rows: Vec::new(),
            unfiltered: 0,
            selected: 0,
            top: 0,
            page: 1,
            filter,
            edits_filter: false,
            only_pid: None,
            open: None,
            is_paused: false,
            shows_help: false,
            colours,
            orders: HashMap::new(),
            anchor: None,
        }
    }

    /// Shows a new sample.
    pub(super) fn update(&mut self, sample: Sample) {
        self.sample = sample;
        if let Some(open) = &mut self.open {
            open.is_there = self.sample.find(open.id).is_some();
            if open.is_there {
                open.last = self.sample.clone();
            }
        }
        self.arrange();
    }

    /// The queue pair whose history the next sample needs.
    pub(super) fn history_of(&self) -> Option<QpId> {
        self.open.as_ref().map(|open| open.id)
    }

    pub(super) fn order(&self) -> Order {
        self.orders.get(&self.tab).copied().unwrap_or_else(|| self.tab.first_order())
    }

    pub(super) fn show(&mut self, tab: Tab) {
        if self.tab != tab {
            (self.tab, self.anchor, self.selected, self.top) = (tab, None, 0, 0);
        }
        self.open = None;
        self.arrange();
    }

    /// Filters and sorts the rows, and finds the selected one again.
    fn arrange(&mut self) {
        (self.rows, self.unfiltered) =
            self.tab.arranged(&self.sample, &self.filter, self.only_pid, self.order());
        let kept = self.anchor.and_then(|id| self.rows.iter().position(|row| row.id == id));
        self.select(kept.unwrap_or(self.selected));
        if kept.is_none() && self.top == 0 && self.selected == 0 {
            // The user has not moved yet: the first row stays selected, whichever it is.
            self.anchor = None;
        }
    }

    fn select(&mut self, at: usize) {
        self.selected = at.min(self.rows.len().saturating_sub(1));
        self.anchor = self.rows.get(self.selected).map(|row| row.id);
        self.scroll_to_selected();
    }

    /// Keeps the selected row on the screen.
    pub(super) fn scroll_to_selected(&mut self) {
        let page = self.page.max(1);
        self.top = self.top.min(self.rows.len().saturating_sub(page));
        self.top = self.top.min(self.selected).max((self.selected + 1).saturating_sub(page));
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if matches!(key.code, KeyCode::Char('c' | 'd')) { Action::Quit } else { Action::None };
        }
        if self.edits_filter {
            self.edit_filter(key.code);
            return Action::None;
        }
        if std::mem::take(&mut self.shows_help) {
            return Action::None;
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('?' | 'h') => self.shows_help = true,
            KeyCode::Char('/') => (self.edits_filter, self.open) = (true, None),
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Char(digit @ '1'..='6') => self.show(Tab::ALL[digit as usize - '1' as usize]),
            KeyCode::Tab | KeyCode::Right => self.switch_tab(1),
            KeyCode::BackTab | KeyCode::Left => self.switch_tab(Tab::ALL.len() - 1),
            KeyCode::Char('s') => self.sort_next(1),
            KeyCode::Char('S') => self.sort_next(self.tab.columns().len() - 1),
            KeyCode::Char('r') => self.reverse(),
            KeyCode::Enter => return self.enter(),
            KeyCode::Esc | KeyCode::Backspace => self.leave(),
            _ => self.move_selection(key.code),
        }
        Action::None
    }

    fn edit_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.edits_filter = false,
            KeyCode::Esc => {
                self.edits_filter = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if !c.is_control() && self.filter.chars().count() < FILTER_LEN => {
                self.filter.push(c);
            }
            _ => {}
        }
        self.arrange();
    }

    fn switch_tab(&mut self, by: usize) {
        let at = Tab::ALL.iter().position(|tab| *tab == self.tab).unwrap_or(0);
        self.show(Tab::ALL[(at + by) % Tab::ALL.len()]);
    }

    fn sort_next(&mut self, by: usize) {
        let columns = self.tab.columns();
        let column = (self.order().column + by) % columns.len();
        self.orders.insert(self.tab, Order { column, descends: columns[column].is_number });
        self.arrange();
    }

    fn reverse(&mut self) {
        let order = self.order();
        self.orders.insert(self.tab, Order { descends: !order.descends, ..order });
        self.arrange();
    }

    /// Opens the selected queue pair, or shows the queue pairs of the selected process.
    fn enter(&mut self) -> Action {
        let Some(row) = self.rows.get(self.selected).filter(|_| self.open.is_none()) else {
            return Action::None;
        };
        match row.id {
            RowId::Qp(id) => {
                self.open = Some(Open { id, last: self.sample.clone(), is_there: true, scroll: 0 });
                return Action::Refresh;
            }
            RowId::Of(pid, ..) => {
                self.only_pid = Some(pid);
                self.show(Tab::Qps);
            }
        }
        Action::None
    }

    /// Back by one step: out of a queue pair, then out of a process, then the filter.
    fn leave(&mut self) {
        if self.open.take().is_none() && self.only_pid.take().is_none() {
            self.filter.clear();
        }
        self.arrange();
    }

    fn move_selection(&mut self, code: KeyCode) {
        let page = self.page.max(1);
        let step = |at: usize| match code {
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => at.saturating_add(1),
            KeyCode::PageUp => at.saturating_sub(page),
            KeyCode::PageDown => at.saturating_add(page),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => usize::MAX,
            _ => at,
        };
        match &mut self.open {
            // `draw` bounds it, when the number of lines is known.
            Some(open) => open.scroll = step(open.scroll),
            None => self.select(step(self.selected)),
        }
    }
}
