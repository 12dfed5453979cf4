-- Opens the index for claims, if it is still the one that was rebuilt.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  number of the generation
-- Returns  1, or 0 when the index was lost, another rebuild has begun, or a queue got other lanes meanwhile
--! include keys
--! include limits
--! include heads
--! include wake
local generation = redis.call('HMGET', GENERATION, 'number', 'run_id', 'reshaped')
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if generation[1] ~= ARGV[1] or generation[2] ~= run_id or generation[3] then return 0 end
redis.call('HSET', GENERATION, 'state', 'ready')
wake_any()
return 1
