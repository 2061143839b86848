// Colours: Grafana's named colours, the palette of series without a fixed colour, and readable text colours.
//
// The palette is based on the colours of Okabe and Ito, which people with colour blindness can distinguish. This module decides
// no meaning: thresholds and mappings are in fields.js.

// Shades in the order super-light, light, normal, semi-dark, dark.
const SHADES = {
  red: ['#ffa6b0', '#ff7383', '#f2495c', '#e02f44', '#c4162a'],
  orange: ['#ffcb7d', '#ffb357', '#ff9830', '#ff780a', '#fa6400'],
  yellow: ['#fff899', '#ffee52', '#fade2a', '#f2cc0c', '#e0b400'],
  green: ['#c8f2c2', '#96d98d', '#73bf69', '#56a64b', '#37872d'],
  blue: ['#c0d8ff', '#8ab8ff', '#5794f2', '#3274d9', '#1f60c4'],
  purple: ['#deb6f2', '#ca95e5', '#b877d9', '#a352cc', '#8f3bb8'],
};
const PREFIXES = ['super-light-', 'light-', '', 'semi-dark-', 'dark-'];
const FROM_THEME = { green: 'good', orange: 'warn', red: 'bad', text: 'text' };

const PALETTES = {
  dark: ['#56b4e9', '#e69f00', '#2fb98d', '#cc79a7', '#f0e442', '#e0702a', '#6f8fe0', '#b9bec4'],
  light: ['#0072b2', '#d55e00', '#009e73', '#b3568a', '#8f7a00', '#3a9bdc', '#6a4ea3', '#5b6168'],
};
const DASHES = ['solid', 'dash', 'dot', 'dashdot'];

/** Return the CSS colour of one of Grafana's colour names, of a hex colour or of another CSS colour. */
export function resolveColor(name, theme) {
  if (!name) return theme.text;
  if (FROM_THEME[name]) return theme[FROM_THEME[name]];
  if (name === 'transparent') return 'rgba(0, 0, 0, 0)';
  const hue = Object.keys(SHADES).find((key) => name === key || name.endsWith(`-${key}`));
  const shade = hue ? PREFIXES.indexOf(name.slice(0, name.length - hue.length)) : -1;
  return shade >= 0 ? SHADES[hue][shade] : name;
}

/** Return colour and dash of the series with this number. After the palette's end, the colours repeat with another dash. */
export function seriesStyle(number, themeName) {
  const palette = PALETTES[themeName === 'light' ? 'light' : 'dark'];
  const round = Math.floor(number / palette.length);
  return { color: palette[number % palette.length], dash: DASHES[round % DASHES.length] };
}

/** Return [red, green, blue] of a colour, or null if it is neither hex nor rgb(). */
export function parseColor(color) {
  const hex = /^#([0-9a-f]{3}|[0-9a-f]{6})$/i.exec(color.trim());
  if (hex) return fromHex(hex[1]);
  const parts = /^rgba?\(\s*(\d+)[\s,]+(\d+)[\s,]+(\d+)/i.exec(color.trim());
  return parts ? [Number(parts[1]), Number(parts[2]), Number(parts[3])] : null;
}

function fromHex(digits) {
  const long = digits.length === 3 ? [...digits].map((digit) => digit + digit).join('') : digits;
  return [0, 2, 4].map((at) => parseInt(long.slice(at, at + 2), 16));
}

/** Return a colour with an opacity between 0 and 1. */
export function withOpacity(color, opacity) {
  const parts = parseColor(color);
  return parts ? `rgba(${parts.join(', ')}, ${opacity})` : color;
}

function mix(first, second, share) {
  return first.map((part, index) => Math.round(part * (1 - share) + second[index] * share));
}

function luminance(parts) {
  const [red, green, blue] = parts.map((part) => {
    const value = part / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Return the contrast ratio of two colours (1 to 21), as WCAG defines it; 21 if one of them is unknown. */
export function contrast(first, second) {
  const [one, two] = [parseColor(first), parseColor(second)];
  if (!one || !two) return 21;
  const [bright, dark] = [luminance(one), luminance(two)].sort((left, right) => right - left);
  return (bright + 0.05) / (dark + 0.05);
}

/** Return a text colour near to `color` with a contrast of 4.5 to the panel's background. */
export function readable(color, theme) {
  const [base, target] = [parseColor(color), parseColor(theme.text)];
  if (!base || !target) return color;
  for (let share = 0; share <= 1; share += 0.1) {
    const candidate = `rgb(${mix(base, target, share).join(', ')})`;
    if (contrast(candidate, theme.panel) >= 4.5) return share === 0 ? color : candidate;
  }
  return theme.text;
}

/** Return black or white, whichever is easier to read on this background. */
export function textOn(background) {
  return contrast('#000000', background) >= contrast('#ffffff', background) ? '#000000' : '#ffffff';
}

// Turbo at equal distances, from no counts to the highest count.
export const TURBO = [
  '#30123b', '#4145ab', '#4675ed', '#39a2fc', '#1bcfd4', '#24eca6', '#61fc6c', '#a4fc3b',
  '#d1e834', '#f3c63a', '#fe9b2d', '#f36315', '#d93806', '#b11901', '#7a0402',
];
