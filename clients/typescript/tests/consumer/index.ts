/** A program that has the built package as a dependency. Compiled with a check of the package's own declarations, never run. */
import * as all from "tidings-client"
import { Entities } from "tidings-client/entities"
import { Hooks, verify } from "tidings-client/hooks"
import { useTopic } from "tidings-client/react"
import { Rooms } from "tidings-client/rooms"
import { Sessions } from "tidings-client/sessions"
import { message, topic, Topics, type Message } from "tidings-client/topics"

const topics = new Topics({ server: "https://tidings.example", token: async () => "t" })
topics.listen("a", ({ payload }: Message) => console.log(payload))
// @ts-expect-error what files of the package share is not for users
void topics._ask
// @ts-expect-error nor is it here
void new Sessions({ server: "" }).session("s")._restore()

export { all, Entities, Hooks, message, Rooms, topic, useTopic, verify }
