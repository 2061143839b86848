"""Code that vLLM loads into its own processes: the stat logger, the scheduler hook and the pipe to the agent.

The room offers the entry points in `vllm_plugin` and `scheduler_hook`, and `protocol`, `model`, `pipe` and `identity`, which the agent
shares. It may import the standard library and itself; `vllm_plugin` and `scheduler_hook` also import vLLM, which loads them.
"""
