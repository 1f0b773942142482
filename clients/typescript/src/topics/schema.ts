import { ValidationError } from "./errors.js"

/** A validator as zod, valibot, arktype and others make them: the interface Standard Schema, version 1. */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly "~standard": {
    readonly version: 1
    readonly vendor: string
    readonly validate: (value: unknown) => Result<Output> | Promise<Result<Output>>
    readonly types?: { readonly input: Input; readonly output: Output } | undefined
  }
}

type Result<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly { readonly message: string; readonly path?: unknown }[] }

/** What one passes to a schema. */
export type InputOf<S extends StandardSchema> = NonNullable<S["~standard"]["types"]>["input"]
/** What a schema makes of it. */
export type OutputOf<S extends StandardSchema> = NonNullable<S["~standard"]["types"]>["output"]

/** A message with a type and a payload that are known when a program is compiled, and checked when it runs. */
export interface MessageDefinition<Type extends string = string, S extends StandardSchema = StandardSchema> {
  readonly type: Type
  readonly schema: S
  /** Checks a payload; throws {@link ValidationError} if the schema does not accept it. */
  check(payload: unknown): Promise<OutputOf<S>>
}

/** Defines a message: `const Said = message("SAID", z.object({ text: z.string() }))`. */
export function message<const Type extends string, S extends StandardSchema>(type: Type, schema: S): MessageDefinition<Type, S> {
  if (!/^(?!\$|__)[^]{1,128}$/.test(type) || type === "ERROR" || type === "RPC_ERROR") {
    throw new TypeError(`"${type}" is no type of a message: it is reserved, empty or too long`)
  }
  return {
    type,
    schema,
    async check(payload) {
      return accepted(await schema["~standard"].validate(payload), `the payload of ${type}`) as OutputOf<S>
    },
  }
}

/** The value that a schema has made, unless it found something wrong. */
function accepted(checked: Result<unknown>, what: string): unknown {
  if (checked.issues) throw new ValidationError(what, checked.issues)
  return checked.value
}

/** A family of topics, built from arguments. At run time a topic is a string. */
export interface TopicDefinition<Args> {
  readonly name: string
  /** The topic of these arguments. Throws {@link ValidationError} if the schema does not accept them. */
  make(args: Args): string
  /** The arguments in a topic; undefined if it is not of this family. */
  parse(topic: string): Args | undefined
}

/**
 * Defines a family of topics: `topic("room", z.object({ roomId: z.uuid() }), ({ roomId }) => `room:${roomId}`)`. With `parse`
 * the arguments can be read back out of a topic; what it returns is checked by the schema and by making the topic again.
 */
export function topic<S extends StandardSchema>(
  name: string,
  schema: S,
  format: (args: OutputOf<S>) => string,
  parse?: (topic: string) => unknown,
): TopicDefinition<InputOf<S>> {
  const make = (args: InputOf<S>) => {
    const checked = schema["~standard"].validate(args)
    if (checked instanceof Promise) throw new TypeError(`the schema of topic "${name}" is asynchronous`)
    return format(accepted(checked, `topic "${name}"`) as OutputOf<S>)
  }
  return {
    name,
    make,
    parse(topic) {
      if (!parse) throw new TypeError(`topic "${name}" has no function that parses it`)
      try {
        const args = parse(topic) as InputOf<S>
        return make(args) === topic ? args : undefined
      } catch {
        // Another family's topic: nothing to destructure, or arguments that the schema does not accept.
        return undefined
      }
    },
  }
}
