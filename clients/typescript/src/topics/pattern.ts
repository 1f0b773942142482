/** Whether a topic is a pattern. */
export function isPattern(topic: string): boolean {
  return topic.includes("*")
}

/**
 * Compiles a pattern. Segments end at `:`, `.` or `/`; `*` is one segment or a run inside one, `**` any number of segments,
 * also none, with the separator before it (`room:**` matches `room`).
 */
export function matcher(pattern: string): (topic: string) => boolean {
  // Segments and separators alternate.
  const parts = pattern.split(/([:./])/)
  let source = ""
  for (let index = 0; index < parts.length; index += 2) {
    const segment = parts[index]!
    const separator = index > 0 ? escape(parts[index - 1]!) : ""
    if (segment === "**") {
      const more = "[^:./]+(?:[:./][^:./]+)*"
      if (index > 0) source += `(?:${separator}${more})?`
      else if (parts.length === 1) source += ".*"
      // At the beginning the separator after it belongs to it.
      else {
        source += `(?:${more}${escape(parts[1]!)})?`
        parts[1] = ""
      }
    } else source += separator + segment.split("*").map(escape).join("[^:./]*").replace(/^\[\^:\.\/\]\*$/, "[^:./]+")
  }
  const expression = new RegExp(`^${source}$`)
  return topic => expression.test(topic)
}

function escape(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&")
}
