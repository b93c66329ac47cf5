// Requests the state of the processes once a second while the page is visible, and draws it. Text of processes becomes text nodes only.
'use strict';
(() => {
  const INTERVAL_MS = 1000, KEPT = 300, TABLE_ROWS = 60, HEIGHT = 220;
  const at = id => document.getElementById(id);
  const SVG = document.querySelector('svg').namespaceURI;
  const query = new URLSearchParams(location.hash.slice(1));
  let paused = false, timer = null, asking = false, again = false, openBefore = null;

  // ---- elements
  const make = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
  const draw = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
  const fill = (element, attributes, children) => {
    for (const [key, value] of Object.entries(attributes)) {
      if (typeof value === 'function') element.addEventListener(key, value);
      else if (value !== undefined && value !== null) element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  };
  const setText = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  // Replaces the content and gives the focus back to the element with the same key.
  const replace = (parent, children) => {
    const key = parent.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    parent.replaceChildren(...children);
    if (key) [...parent.querySelectorAll('[data-key]')].find(element => element.dataset.key === key)?.focus({ preventScroll: true });
  };
  const button = (name, key, act, attributes = {}) => make('button', { type: 'button', 'data-key': key, click: act, ...attributes }, name);
  const short = value => {
    for (const [unit, name] of [[1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
      if (value >= unit * .9995) { const n = value / unit; return n.toFixed(n >= 100 ? 0 : n >= 10 ? 1 : 2) + name; }
    }
    return Number.isInteger(value) || value >= 100 ? value.toFixed(0) : value.toFixed(value >= 10 ? 1 : 2);
  };

  // ---- the user's choices: kept in the address, so that reloading shows the same
  const want = changes => {
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === '') query.delete(key); else query.set(key, value);
    }
    history.replaceState(null, '', '#' + query);
    ask();
  };

  // ---- plots over time
  const series = new Map();
  const remember = (plot, name, value, now) => {
    if (!series.has(plot)) series.set(plot, new Map());
    const lines = series.get(plot);
    if (!lines.has(name)) lines.set(name, []);
    const points = lines.get(name);
    points.push([now, value]);
    if (points.length > KEPT) points.shift();
  };
  const forgetOld = (plot, now) => {
    const lines = series.get(plot);
    for (const [name, points] of lines ?? []) if (now - points.at(-1)[0] > KEPT * INTERVAL_MS) lines.delete(name);
  };
  const tableBehind = (figure, headings, rows) => {
    let details = figure.querySelector('details');
    if (!details) {
      details = make('details', {}, make('summary', {}, 'As a table'),
        make('div', { class: 'wide', tabindex: 0, role: 'region', 'aria-label': 'Figures' }, make('table', {}, make('thead'), make('tbody'))));
      details.addEventListener('toggle', () => details.show());
      figure.append(details);
    }
    details.show = () => {
      if (!details.open) return;
      details.querySelector('thead').replaceChildren(make('tr', {}, ...headings.map(heading => make('th', { scope: 'col' }, heading))));
      details.querySelector('tbody').replaceChildren(...rows().map(row => make('tr', {}, ...row.map(cell => make('td', {}, cell)))));
    };
    details.show();
  };
  const plot = (id, caption) => {
    const figure = at(id), svg = figure.querySelector('svg'), lines = [...(series.get(id) ?? [])];
    const width = Math.max(280, figure.clientWidth), left = 56, right = width - 8, top = 12, bottom = HEIGHT - 42;
    const all = lines.flatMap(([, points]) => points);
    const last = Math.max(...all.map(point => point[0])), first = Math.min(last - 60e3, ...all.map(point => point[0]));
    const most = Math.max(1, ...all.map(point => point[1]));
    const unit = 10 ** Math.floor(Math.log10(most)), high = [1, 2, 5, 10].find(step => step * unit >= most) * unit;
    const x = time => left + (time - first) / (last - first) * (right - left);
    const y = value => bottom - value / high * (bottom - top);
    const parts = [];
    for (let n = 0; n <= 4; n++) {
      const value = high * n / 4;
      parts.push(draw('line', { class: 'grid', x1: left, x2: right, y1: y(value), y2: y(value) }),
        draw('text', { class: 'end', x: left - 6, y: y(value) + 4 }, short(value)));
    }
    for (const share of [0, .5, 1]) {
      const time = first + (last - first) * share;
      parts.push(draw('text', { class: share === 1 ? 'end' : share ? 'middle' : '', x: x(time), y: bottom + 16 },
        share === 1 ? 'now' : `${Math.round((last - time) / 1000)} s ago`));
    }
    let legend = left;
    lines.forEach(([name, points], n) => {
      const path = points.map(point => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join(' ');
      const line = draw('polyline', { class: 'line', points: path, 'stroke-dasharray': ['', '7 4', '2 4'][n % 3] });
      parts.push(draw('g', { class: `series c${n % 10}` }, draw('title', {}, name), line,
        draw('line', { class: 'line', x1: legend, x2: legend + 18, y1: HEIGHT - 8, y2: HEIGHT - 8, 'stroke-dasharray': ['', '7 4', '2 4'][n % 3] })));
      if (legend < right - 60) parts.push(draw('text', { class: 'legend', x: legend + 22, y: HEIGHT - 4 }, name));
      legend += 40 + name.length * 8;
    });
    svg.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
    svg.replaceChildren(...parts);
    setText(figure.querySelector('figcaption'), caption);
    tableBehind(figure, ['seconds ago', ...lines.map(([name]) => name)], () => {
      const times = [...new Set(all.map(point => point[0]))].sort((a, b) => b - a).slice(0, TABLE_ROWS);
      return times.map(time => [((last - time) / 1000).toFixed(0),
        ...lines.map(([, points]) => { const found = points.find(point => point[0] === time); return found ? short(found[1]) : ''; })]);
    });
  };

  // ---- the table
  const showTable = data => {
    const table = data.table;
    replace(at('tabs'), data.tabs.map((title, n) => button(title, `tab${n}`, () => want({ tab: n, sort: null, down: null }), { 'aria-pressed': n === table.tab })));
    replace(at('table').querySelector('thead tr'), table.columns.map(([title, isNumber], n) => {
      const sorted = n === table.sort;
      const down = sorted ? !table.down : isNumber;
      return make('th', { scope: 'col', class: isNumber ? null : 'name', 'aria-sort': sorted ? (table.down ? 'descending' : 'ascending') : 'none' },
        button(title + (sorted ? (table.down ? ' ▾' : ' ▴') : ''), `sort${n}`, () => want({ sort: n, down: +down })));
    }));
    replace(at('table').querySelector('tbody'), table.rows.map((row, n) => {
      const act = row.qp ? () => want({ qp: row.qp }) : () => want({ pid: row.pid, tab: 0, sort: null, down: null });
      const title = row.qp ? 'Open this queue pair' : 'Show the queue pairs of this process';
      const cells = row.cells.map(([text, tone], column) => {
        const cell = make(column ? 'td' : 'th', { class: `${tone} ${table.columns[column][1] ? '' : 'name'}`, scope: column ? null : 'row' });
        cell.append(column ? text : button(text, row.qp ?? `${row.pid}.${n}`, act, { title }));
        return cell;
      });
      const isGone = row.gone_s !== null;
      return make('tr', { class: isGone ? 'gone' : null, title: isGone ? `No answer for ${row.gone_s} s: the process ended, or is stopped` : null }, ...cells);
    }));
    const shown = table.rows.length;
    const filtered = table.matching < table.all ? ` of ${table.all}` : '';
    setText(at('count'), shown === 0 ? table.nothing : shown < table.matching
      ? `The first ${shown} rows of ${table.matching}${filtered}: sort or filter to see others.` : `${shown}${filtered} rows.`);
    at('all').hidden = !query.has('pid');
    setText(at('all'), `Show all processes, not only ${query.get('pid')}`);
  };

  // ---- one queue pair
  const kindOf = what => what.replace(/[\d:,(].*/s, '').trim();
  const showEvents = events => {
    const figure = at('timeline'), svg = figure.querySelector('svg');
    const kinds = [...new Set(events.map(event => kindOf(event.what)))].slice(0, 8);
    const width = Math.max(280, figure.clientWidth), left = Math.min(190, width * .45), right = width - 12, row = 22;
    const oldest = Math.max(1e-3, ...events.map(event => event.ago_s));
    // Logarithmic: the last second is as wide as the hour before.
    const x = ago => right - Math.log1p(ago * 1e3) / Math.log1p(oldest * 1e3) * (right - left);
    const y = what => 16 + row * Math.max(0, kinds.indexOf(kindOf(what)));
    const height = 16 + row * Math.max(1, kinds.length) + 18;
    const parts = kinds.flatMap(name => [draw('line', { class: 'grid', x1: left, x2: right, y1: y(name), y2: y(name) }),
      draw('text', { x: 0, y: y(name) + 4 }, name.length > left / 8 ? name.slice(0, left / 8 - 1) + '…' : name)]);
    for (const event of events) {
      const tone = /fail|timeout|drop|refus|ERR/i.test(event.what) ? 'failed' : /retrans|NAK|RNR/.test(event.what) ? 'warning' : 'reached';
      parts.push(draw('circle', { class: `event ${tone}`, cx: x(event.ago_s), cy: y(event.what), r: Math.min(9, 4 + Math.log2(event.count)) },
        draw('title', {}, `${event.ago_s.toFixed(3)} s ago: ${event.what}${event.count > 1 ? ` ×${event.count}` : ''}`)));
    }
    parts.push(draw('text', { class: 'end', x: right, y: height - 3 }, 'now'), draw('text', { x: left, y: height - 3 }, `${oldest.toFixed(1)} s ago`));
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    svg.replaceChildren(...parts);
    setText(figure.querySelector('figcaption'), 'Time is logarithmic. A larger dot is an event that repeated.');
  };
  const showDetail = (open, now) => {
    const isWanted = query.has('qp');
    const section = at('detail');
    if (isWanted && !open && openBefore?.qp === query.get('qp')) open = { ...openBefore, gone: true };
    section.hidden = !isWanted;
    if (!isWanted) { openBefore = null; return; }
    at('detail-gone').hidden = !!open && !open.gone;
    setText(at('detail-gone'), open ? 'It is gone; this is its last report.' : 'There is no such queue pair any more.');
    if (!open) { setText(at('detail-title'), 'Queue pair'); return; }
    if (openBefore?.qp !== open.qp) {
      series.delete('qp-rates'); series.delete('qp-resent');
      section.scrollIntoView({ block: 'start' });
    }
    openBefore = open;
    setText(at('detail-title'), open.title);
    replace(at('facts'), open.facts.flatMap(([name, value]) => [make('dt', {}, name), make('dd', { class: name === 'state' ? open.state : '' }, value)]));
    remember('qp-rates', 'sent', open.rates.tx_bytes, now); remember('qp-rates', 'received', open.rates.rx_bytes, now);
    remember('qp-resent', 'retransmitted', open.rates.retransmitted, now);
    plot('qp-rates', 'Bytes per second. One-sided operations in the memory of a local peer have no packets: they are the row direct above.');
    plot('qp-resent', 'Packets per second; 0 is best.');
    setText(at('events-title'), open.keeps_events ? `Last ${open.events.length} events, the newest first` : 'The version of its process stores no events');
    showEvents(open.events);
    replace(at('events').querySelector('tbody'), open.events.map(event => make('tr', {},
      make('td', {}, event.ago_s.toFixed(3)), make('td', {}, String(event.count)), make('td', {}, event.what))));
  };

  // ---- the packet timeline of a process that records
  let framed = null, framedAt = 0;
  const showPackets = data => {
    const pid = query.get('qp')?.split('.')[0] ?? query.get('pid');
    const isThere = data.captures.length > 0 && !!pid;
    at('packets').hidden = !isThere;
    if (!isThere) { if (framed) at('frame').removeAttribute('src'); framed = null; return; }
    setText(at('captures'), `Process ${pid} records: ${data.captures.join(', ')}.`);
    if (framed !== pid || (at('follow').checked && Date.now() - framedAt > 3000)) readCapture(pid);
  };
  const readCapture = pid => {
    [framed, framedAt] = [pid, Date.now()];
    at('frame').src = `timeline?pid=${encodeURIComponent(pid)}&at=${framedAt}`;
  };

  // ---- the topology
  const showTopology = ({ nodes, links, left_out: leftOut }) => {
    const figure = at('topology'), svg = figure.querySelector('svg');
    const width = Math.max(300, figure.clientWidth), box = [Math.min(170, width * .34), 34];
    const height = nodes.length < 3 ? 160 : Math.min(640, 180 + nodes.length * 34);
    const place = n => {
      if (nodes.length === 1) return [width / 2, height / 2];
      const angle = Math.PI + 2 * Math.PI * n / nodes.length;
      return [width / 2 + (width / 2 - box[0] / 2 - 6) * Math.cos(angle), height / 2 + (height / 2 - box[1]) * Math.sin(angle)];
    };
    const parts = [], drawnNodes = [];
    for (const { a, b, link } of links) {
      const [[x1, y1], [x2, y2]] = [place(a), place(b)];
      const label = `${nodes[a].name} and ${nodes[b].name}: ${link.count} queue pairs, ${short(link.bytes)} B/s, ${short(link.resent)} resent/s`;
      // A loop bends towards the middle of the drawing.
      const bend = y1 < height / 2 ? 70 : -70;
      const length = Math.hypot(x2 - x1, y2 - y1) || 1;
      link.lines.forEach(([qp, tone], n) => {
        const off = (n - (link.lines.length - 1) / 2) * 9;
        const middle = a === b ? [x1 + box[0] * .7 + off, y1 + bend] : [(x1 + x2) / 2 - (y2 - y1) / length * off * 2, (y1 + y2) / 2 + (x2 - x1) / length * off * 2];
        const d = a === b ? `M${x1 + 20} ${y1}C${x1 + 20} ${middle[1] + off} ${middle[0]} ${middle[1] + off} ${x1 + box[0] / 2} ${y1}`
          : `M${x1} ${y1}Q${middle[0]} ${middle[1]} ${x2} ${y2}`;
        parts.push(draw('g', { class: `link ${tone}`, click: () => want({ qp }) }, draw('title', {}, label), draw('path', { class: 'link-line', d }), draw('path', { class: 'link-hit', d })));
      });
      const where = a === b ? [x1, y1 + bend * .8] : [(x1 + x2) / 2, (y1 + y2) / 2 - 4 - link.lines.length * 5];
      parts.push(draw('text', { class: 'middle', x: where[0], y: where[1] }, `${link.count} QP${link.count === 1 ? '' : 's'}, ${short(link.bytes)} B/s`));
    }
    nodes.forEach((node, n) => {
      const [x, y] = place(n), room = Math.floor(box[0] / 8);
      const name = node.name.length > room ? node.name.slice(0, room - 1) + '…' : node.name;
      const kind = node.pid === null ? 'host' : 'process';
      drawnNodes.push(draw('g', { class: `node ${kind} ${node.gone ? 'gone' : ''}`, click: () => { if (node.pid !== null) want({ pid: node.pid, tab: 0 }); } },
        draw('title', {}, `${node.name}${node.gone ? ', gone' : ''}, ${node.unconnected} queue pairs without a peer`),
        draw('rect', { x: x - box[0] / 2, y: y - box[1] / 2, width: box[0], height: box[1], rx: 6 }), draw('text', { x, y: y + 4 }, name)));
    });
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    svg.replaceChildren(...parts, ...drawnNodes);
    const rest = leftOut ? ` ${leftOut} more processes and hosts move less, and are not drawn.` : '';
    setText(figure.querySelector('figcaption'), nodes.length === 0 ? 'No process has a device open.'
      : `Solid boxes are processes of this host, dashed ones other hosts. Each line is a queue pair, up to eight per link; red ones have failed.${rest}`);
    tableBehind(figure, ['from', 'to', 'queue pairs', 'B/s', 'resent/s'], () => links.map(({ a, b, link }) =>
      [nodes[a].name, nodes[b].name, String(link.count), short(link.bytes), short(link.resent)]));
  };

  // ---- the loop
  const card = (figure, what) => make('li', {}, make('div', { class: 'ratio' }, figure), what);
  const render = data => {
    const now = Date.now(), rates = data.rates;
    setText(at('status'), `${data.at}${paused ? ', paused' : ''}. k is 1000, M a million; rates are per second.`);
    at('trouble').hidden = data.unanswered.length === 0;
    setText(at('trouble'), data.unanswered.join(' '));
    at('totals').replaceChildren(card(String(rates.processes - data.gone), 'processes'), card(String(rates.qps), 'queue pairs'),
      card(`${short(rates.tx)} B/s`, 'sent'), card(`${short(rates.rx)} B/s`, 'received'), card(`${short(rates.resent)}/s`, 'packets retransmitted'),
      card(`${short(rates.drops)}/s`, 'packets dropped'));
    remember('rates', 'sent', rates.tx, now); remember('rates', 'received', rates.rx, now);
    remember('retries', 'retransmitted', rates.resent, now); remember('retries', 'dropped', rates.drops, now);
    for (const line of rates.busiest) remember('processes', line.name, line.tx, now);
    forgetOld('processes', now);
    showTable(data);
    plot('rates', 'Bytes per second, all processes.');
    plot('processes', 'Bytes sent per second by the busiest processes.');
    plot('retries', 'Packets per second, all processes; 0 is best.');
    showTopology(data.topology);
    showDetail(data.open, now);
    showPackets(data);
    document.body.dataset.samples = +(document.body.dataset.samples ?? 0) + 1;
  };
  const ask = async () => {
    if (asking) { again = true; return; }
    clearTimeout(timer);
    asking = true;
    try {
      const answer = await fetch('data?' + query, { cache: 'no-store' });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      render(await answer.json());
    } catch (error) {
      setText(at('status'), `ferroce view does not answer (${error.message}). Start it again, and open the address that it prints.`);
    }
    asking = false;
    if (again) { again = false; ask(); } else if (!paused && !document.hidden) timer = setTimeout(ask, INTERVAL_MS);
  };
  at('filter').value = query.get('filter') ?? '';
  at('filter').addEventListener('input', event => want({ filter: event.target.value }));
  at('all').addEventListener('click', () => want({ pid: null }));
  at('close').addEventListener('click', () => want({ qp: null }));
  at('reload').addEventListener('click', () => { if (framed) readCapture(framed); });
  at('pause').addEventListener('click', () => {
    paused = !paused;
    at('pause').setAttribute('aria-pressed', paused);
    if (paused) clearTimeout(timer);
    ask();
  });
  // A hidden page sends no requests, so no process is queried.
  document.addEventListener('visibilitychange', () => { clearTimeout(timer); if (!document.hidden && !paused) ask(); });
  ask();
})();
