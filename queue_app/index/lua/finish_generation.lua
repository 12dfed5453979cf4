-- Ends a rebuild: claims are allowed for good if the index still carries the generation that was rebuilt.
--
-- ARGV[1]  number of the generation
-- Returns  1, or 0 when the index was lost, another rebuild has begun, or the lanes of a queue changed meanwhile
--! include wake
local generation = redis.pcall('HMGET', GENERATION, 'number', 'run_id', 'reshaped')
if generation[1] ~= ARGV[1] or generation[2] ~= server_run() or generation[3] then return 0 end
redis.call('HSET', GENERATION, 'state', 'ready')
redis.call('DEL', LOADING)
wake_any()
return 1
