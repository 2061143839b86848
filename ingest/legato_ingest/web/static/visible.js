// Text from the store as characters that can be seen.
//
// Senders choose the names. A name could run backwards, or look like another through characters without a width. Each such
// character is shown as an escape, such as \u202e. The values themselves, which filters and links use, stay as they are.

const UNSEEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{DI}\u2800]/gu;

/** Return the text with an escape in place of each character that is not seen, but for line breaks and tabs. */
export function visibleText(text) {
  return String(text).replace(UNSEEN, (character) => {
    const code = character.codePointAt(0).toString(16);
    return code.length > 4 ? `\\U${code.padStart(8, "0")}` : `\\u${code.padStart(4, "0")}`;
  });
}
