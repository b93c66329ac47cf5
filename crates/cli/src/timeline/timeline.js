// Draws the ladder of each connection from the tables behind it.
'use strict';
(() => {
  const SVG = new DOMParser().parseFromString('<svg/>', 'text/html').querySelector('svg').namespaceURI;
  const HEIGHT = 520, TOP = 34, BOTTOM = 12, AXIS = 66, LANES = 4, LANE = 9, MAX_DRAWN = 1200;

  const make = (parent, name, attributes, text) => {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    parent.appendChild(element);
    return element;
  };
  const show = ns => {
    const a = Math.abs(ns);
    if (a < 1e3) return ns.toFixed(0) + ' ns';
    if (a < 1e6) return (ns / 1e3).toFixed(a < 1e4 ? 2 : 1) + ' µs';
    if (a < 1e9) return (ns / 1e6).toFixed(a < 1e7 ? 2 : 1) + ' ms';
    return (ns / 1e9).toFixed(3) + ' s';
  };
  // Label of a tick: enough digits to distinguish adjacent ticks.
  const tickLabel = (ns, step) => {
    const [unit, scale] = step >= 1e8 ? ['s', 1e9] : step >= 1e5 ? ['ms', 1e6] : step >= 1e2 ? ['µs', 1e3] : ['ns', 1];
    return (ns / scale).toFixed(Math.max(0, Math.ceil(-Math.log10(step / scale)))) + ' ' + unit;
  };

  const begin = section => {
    const ladder = section.querySelector('.ladder');
    const packets = [...section.querySelectorAll('tr[data-p]')].map(row => {
      const [time, arrival, from, kind, anomaly, lost, leftOut] = row.dataset.p.split(',');
      return { time: +time, arrival: arrival === '' ? null : +arrival, from: +from, kind, anomaly: anomaly === '1', lost: lost === '1',
        leftOut: +leftOut, row };
    });
    const messages = [...section.querySelectorAll('tr[data-m]')].map(row => {
      const [start, end, from, kind, trouble] = row.dataset.m.split(',');
      return { start: +start, end: +end, from: +from, kind, trouble: trouble === '1', row, lane: 0 };
    });
    if (!packets.length) return;
    // A packet is recorded when its send call returns, which may be after the answer.
    packets.sort((a, b) => a.time - b.time);
    const isMark = packet => packet.kind === 'post' || packet.kind === 'completion';
    // Messages that overlap in time get different lanes.
    const free = [[], []];
    for (const message of messages) {
      const lanes = free[message.from];
      let lane = 0;
      while (lane < LANES - 1 && lanes[lane] > message.start) lane++;
      lanes[lane] = message.end;
      message.lane = lane;
    }
    const last = packets.reduce((most, packet) => Math.max(most, packet.arrival ?? packet.time), 0);
    const first = packets[0].time;
    const whole = Math.max(1, last - first);
    let view, selected = null, frame = null;

    const tools = ladder.appendChild(document.createElement('div'));
    tools.className = 'tools';
    const button = (name, title, act) => {
      const element = tools.appendChild(document.createElement('button'));
      element.type = 'button';
      element.textContent = name;
      element.title = title;
      element.addEventListener('click', act);
    };
    const box = ladder.appendChild(document.createElement('div'));
    box.className = 'view';
    box.tabIndex = 0;
    box.setAttribute('role', 'application');
    box.setAttribute('aria-label', `Ladder diagram of ${ladder.dataset.a} and ${ladder.dataset.b}. Arrow keys select a packet, plus and minus zoom, ` +
      'page up and page down move, n goes to the next anomaly. The tables below have the same content.');
    const svg = make(box, 'svg', { height: HEIGHT });
    const output = ladder.appendChild(document.createElement('p'));
    output.className = 'words';
    output.setAttribute('aria-live', 'polite');
    output.textContent = 'Select a packet: click it, or use the arrow keys.';
    ladder.hidden = false;

    const later = () => { frame ??= requestAnimationFrame(() => { frame = null; draw(); }); };
    const setView = (from, to) => {
      const span = Math.min(Math.max(to - from, 20), whole * 1.3);
      const middle = Math.min(Math.max((from + to) / 2, first - whole * .1), last + whole * .1);
      view = [middle - span / 2, middle + span / 2];
      later();
    };
    const zoom = (factor, around) => {
      const at = around ?? (view[0] + view[1]) / 2;
      setView(at - (at - view[0]) * factor, at + (view[1] - at) * factor);
    };
    const pan = share => { const by = (view[1] - view[0]) * share; setView(view[0] + by, view[1] + by); };
    const select = (index, isVisible) => {
      selected = index;
      const packet = packets[index];
      const cells = packet.row.cells;
      const sender = packet.from ? ladder.dataset.b : ladder.dataset.a;
      output.textContent = `${cells[0].textContent}, from ${sender}: ${cells[4].textContent}`;
      const end = packet.arrival ?? packet.time;
      if (!isVisible && (packet.time < view[0] || end > view[1])) {
        const half = (view[1] - view[0]) / 2;
        setView(packet.time - half, packet.time + half);
      }
      later();
    };
    const nextAnomaly = () => {
      const found = packets.findIndex((packet, index) => index > (selected ?? -1) && packet.anomaly);
      const index = found >= 0 ? found : packets.findIndex(packet => packet.anomaly);
      if (index >= 0) select(index, false); else output.textContent = 'No anomaly among the packets shown.';
    };
    button('+', 'zoom in', () => zoom(.5));
    button('−', 'zoom out', () => zoom(2));
    button('↑', 'earlier', () => pan(-.5));
    button('↓', 'later', () => pan(.5));
    button('all', 'show all packets', () => setView(first - whole * .03, last + whole * .03));
    button('next anomaly', 'go to the next anomaly', nextAnomaly);

    const draw = () => {
      const width = Math.max(300, box.clientWidth);
      svg.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
      svg.textContent = '';
      const bars = LANES * LANE + 8;
      const x = [AXIS + bars, width - bars - 6];
      const y = ns => TOP + (ns - view[0]) / (view[1] - view[0]) * (HEIGHT - TOP - BOTTOM);
      const clip = value => Math.min(Math.max(value, TOP), HEIGHT - BOTTOM);
      const step = 10 ** Math.floor(Math.log10((view[1] - view[0]) / 4));
      const ticks = [step, 2 * step, 5 * step].find(s => (view[1] - view[0]) / s <= 12) ?? 10 * step;
      const firstTick = Math.ceil(view[0] / ticks) * ticks;
      // Above 2^53 a tick may be less than the precision of a number, so the ticks are counted.
      for (let n = 0, at = firstTick; n <= 12 && at <= view[1]; n++, at = firstTick + n * ticks) {
        make(svg, 'line', { class: 'tick-line', x1: AXIS, x2: width, y1: y(at), y2: y(at) });
        make(svg, 'text', { class: 'end', x: AXIS - 6, y: y(at) + 4 }, tickLabel(at, ticks));
      }
      for (const message of messages) {
        if (message.end < view[0] || message.start > view[1]) continue;
        const [from, to] = [clip(y(message.start)), clip(y(message.end))];
        const at = message.from ? x[1] + 6 + message.lane * LANE : x[0] - 6 - (message.lane + 1) * LANE;
        const bar = make(svg, 'rect', { class: `bar ${message.kind}${message.trouble ? ' trouble' : ''}`, x: at, y: from, width: LANE - 2,
          height: Math.max(2, to - from), rx: 2 });
        const cells = [...message.row.cells].map(cell => cell.textContent);
        make(bar, 'title', {}, `${cells[2]}, ${cells[3]}, ${cells[4]} packets, latency ${cells[6]}, ${cells[7]}`);
      }
      const visible = packets.map((packet, index) => ({ packet, index }))
        .filter(({ packet }) => (packet.arrival ?? packet.time) >= view[0] && packet.time <= view[1]);
      [0, 1].forEach(end => {
        make(svg, 'line', { class: 'life', x1: x[end], x2: x[end], y1: TOP, y2: HEIGHT - BOTTOM });
      });
      // Where packets would lie on top of each other, every n-th is drawn, and every anomaly.
      const every = Math.ceil(visible.length / MAX_DRAWN);
      let labelled = [-99, -99];
      visible.forEach(({ packet, index }, n) => {
        if (n % every && !packet.anomaly && index !== selected) return;
        const to = 1 - packet.from;
        const [y1, y2] = [y(packet.time), y(packet.arrival ?? packet.time)];
        const group = make(svg, 'g', { class: `${packet.kind}${packet.anomaly ? ' anomaly' : ''}${index === selected ? ' selected' : ''}` });
        group.addEventListener('click', () => { select(index, true); box.focus({ preventScroll: true }); });
        const sign = packet.from ? -1 : 1;
        if (packet.leftOut) make(svg, 'line', { class: 'left-out', x1: x[0], x2: x[1], y1: y1 - 7, y2: y1 - 7 });
        if (isMark(packet)) {
          const tip = x[packet.from] - sign * 5;
          make(group, 'circle', { class: 'head', cx: tip, cy: y1, r: packet.kind === 'post' ? 4 : 3 });
        } else {
          const reach = packet.lost ? x[packet.from] + sign * (x[1] - x[0]) * .6 : x[to] - sign * 7;
          const stop = packet.lost ? y1 + (y2 - y1) * .6 : y2;
          make(group, 'line', { class: 'packet', x1: x[packet.from], y1, x2: reach, y2: stop });
          if (packet.lost) make(group, 'path', { class: 'packet', d: `M${reach - 5} ${stop - 5}l10 10m0 -10l-10 10` });
          else make(group, 'path', { class: 'head', d: `M${x[to]} ${y2}l${-sign * 9} -4v8z` });
        }
        make(group, 'line', { class: 'hit', x1: x[packet.from], y1, x2: x[to], y2 });
        make(group, 'title', {}, packet.row.cells[4].textContent);
        const middle = isMark(packet) ? y1 : y1 + (y2 - y1) * .12;
        if (Math.abs(middle - labelled[packet.from]) > 13 || index === selected) {
          labelled[packet.from] = middle;
          const near = x[packet.from] + sign * (isMark(packet) ? 8 : (x[1] - x[0]) * .12);
          make(group, 'text', { class: `name ${packet.from ? 'end' : ''}`, x: near, y: middle - 3 }, packet.row.cells[2].textContent);
        }
      });
      // Lines of packets that begin before the view must not cross the names.
      make(svg, 'rect', { class: 'cover', x: 0, y: 0, width, height: TOP - 4 });
      [0, 1].forEach(end => make(svg, 'text', { class: `end-name ${end ? 'end' : ''}`, x: end ? width - 4 : 4, y: 20 },
        end ? ladder.dataset.b : ladder.dataset.a));
    };

    box.addEventListener('keydown', event => {
      const move = by => {
        const index = selected === null ? packets.findIndex(packet => packet.time >= view[0]) : selected + by;
        select(Math.min(Math.max(index, 0), packets.length - 1), false);
      };
      const acts = {
        ArrowDown: () => move(1), ArrowUp: () => move(-1), ArrowRight: () => move(1), ArrowLeft: () => move(-1), '+': () => zoom(.5), '=': () => zoom(.5),
        '-': () => zoom(2), PageDown: () => pan(.5), PageUp: () => pan(-.5), Home: () => select(0, false), End: () => select(packets.length - 1, false),
        n: nextAnomaly, a: () => setView(first - whole * .03, last + whole * .03),
      };
      if (acts[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) { acts[event.key](); event.preventDefault(); }
    });
    const timeAt = event => {
      const area = svg.getBoundingClientRect();
      const at = (event.clientY - area.top) * HEIGHT / area.height;
      return view[0] + (at - TOP) / (HEIGHT - TOP - BOTTOM) * (view[1] - view[0]);
    };
    box.addEventListener('wheel', event => {
      // The page scrolls as usual until the diagram has the focus.
      if (!event.ctrlKey && document.activeElement !== box) return;
      event.preventDefault();
      if (event.ctrlKey || event.shiftKey) zoom(event.deltaY > 0 ? 1.25 : .8, timeAt(event)); else pan(Math.sign(event.deltaY) * .12);
    }, { passive: false });
    const pointers = new Map();
    box.addEventListener('pointerdown', event => pointers.set(event.pointerId, event));
    box.addEventListener('pointermove', event => {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      const scale = (view[1] - view[0]) / (HEIGHT - TOP - BOTTOM);
      if (pointers.size === 1) {
        const by = (before.clientY - event.clientY) * scale;
        if (Math.abs(before.clientY - event.clientY) < 2) return;
        setView(view[0] + by, view[1] + by);
      } else {
        const other = [...pointers.values()].find(pointer => pointer.pointerId !== event.pointerId);
        const distance = pointer => Math.hypot(pointer.clientX - other.clientX, pointer.clientY - other.clientY);
        if (distance(event) > 10) zoom(distance(before) / distance(event), timeAt(other));
      }
      pointers.set(event.pointerId, event);
    });
    for (const end of ['pointerup', 'pointercancel', 'pointerleave']) box.addEventListener(end, event => pointers.delete(event.pointerId));
    for (const packet of packets) {
      packet.row.tabIndex = 0;
      const show = () => { select(packets.indexOf(packet), false); ladder.scrollIntoView({ block: 'center' }); };
      packet.row.addEventListener('click', show);
      packet.row.addEventListener('keydown', event => { if (event.key === 'Enter') show(); });
    }
    section.querySelector('.overview svg')?.addEventListener('click', event => {
      const area = event.currentTarget.getBoundingClientRect();
      const at = (event.clientX - area.left) / area.width * (+section.dataset.duration || last);
      const half = (view[1] - view[0]) / 2;
      setView(at - half, at + half);
    });
    addEventListener('resize', later);
    // The first view has up to thirty packets, and ends at a long pause: arrows on top of each other are unreadable. Receives
    // that were posted long before do not count.
    const wire = packets.filter(packet => !isMark(packet));
    const early = wire.length ? wire : packets;
    const from = early[0].time;
    let count = 1;
    while (count < Math.min(early.length, 30)
      && (count < 4 || early[count].time - early[count - 1].time < 4 * (early[count - 1].time - from))) count++;
    const end = early[count - 1];
    const until = Math.max(end.arrival ?? end.time, from + 20);
    view = [from, until];
    setView(from - (until - from) * .05, until + (until - from) * .05);
    draw();
  };
  document.querySelectorAll('section.connection').forEach(begin);
})();
