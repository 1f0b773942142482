/** Whether a topic is a pattern. */
export function isPattern(topic: string): boolean {
  return topic.includes("*")
}

/**
 * Compiles a pattern. Segments begin at `:`, `.` or `/`; `*` is one segment or a run inside one, `**` any number of segments,
 * also none, with the separator before it (`room:**` matches `room`).
 */
export function matcher(pattern: string): (topic: string) => boolean {
  // Where `**` at the beginning stands for nothing, there is no separator after it.
  let start = ""
  const source = pattern.replace(/([:./]?)([^:./]*)/g, (_, separator: string, segment: string, at: number) => {
    const before = separator && `(${start}\\${separator})`
    if (segment === "**") {
      if (at === 0) start = "^|"
      return `(${before}.*)?`
    }
    start = ""
    return before + segment.replace(/[^*\w]/g, "\\$&").replaceAll("*", "[^:./]*")
  })
  const expression = new RegExp(`^${source}$`, "s")
  return topic => expression.test(topic)
}
