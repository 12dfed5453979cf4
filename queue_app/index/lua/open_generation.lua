-- Allows claims while a rebuild still loads tasks, if the index carries its generation.
--
-- ARGV[1]  number of the generation
-- Returns  1, or 0 when the index was lost, another rebuild has begun, or the lanes of a queue changed meanwhile
--! include wake
local generation = redis.pcall('HMGET', GENERATION, 'number', 'run_id', 'reshaped')
if generation[1] ~= ARGV[1] or generation[2] ~= server_run() or generation[3] then return 0 end
redis.call('HSET', GENERATION, 'state', 'loading')
wake_any()
return 1
