"""The echo agent for `adk api_server`: it says what it hears, without a model.

It does what Everturn's demo agent does, as far as ADK has it: one answer, and three keys of state that change with it.
"""

from google.adk.agents import BaseAgent
from google.adk.events import Event, EventActions
from google.genai import types


class Echo(BaseAgent):

    async def _run_async_impl(self, ctx):
        parts = ctx.user_content.parts if ctx.user_content else []
        text = "".join(part.text or "" for part in parts)
        turns = ctx.session.state.get("turns", 0) + 1
        yield Event(
            invocation_id=ctx.invocation_id,
            author=self.name,
            content=types.Content(role="model", parts=[types.Part(text=f"echo: {text}")]),
            actions=EventActions(state_delta={"turns": turns, "last": text, "status": "idle"}),
        )


root_agent = Echo(name="echo")
